"""Executors that are wrong in one way each: what a device's author gets wrong first.

Legend: B requests, N rows of a request, T tree slots, V vocabulary, n live rows, G KV heads, D head dim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops import DraftLogits
from spec_sdk.ops.grown_paths import GrownPaths, OutputRows, ProbablePaths, RowsToCommit
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from tests.executors.numpy_cache import Array, NumpyCache
from tests.executors.numpy_executor import NumpyExecutor
from tests.executors.numpy_model import NumpyModel
from tests.executors.numpy_runners import RequestPass

WRONG: dict[str, type[WrongExecutor]] = {}


class WrongExecutor(NumpyExecutor):
    """One with a fault; each subclass is one."""

    WrongCache: type[NumpyCache] = NumpyCache

    def __init_subclass__(cls) -> None:
        WRONG[cls.__doc__ or ""] = cls

    def new_cache(self) -> NumpyCache:
        return self.WrongCache(self.config, self.layers)

    def cut(self, layers: Sequence[int]) -> NumpyExecutor:
        return type(self)(self.model.subset(layers))

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        return super().forward(self.changed(inputs), cache, plan)

    def changed(self, inputs: PassInputs) -> PassInputs:
        """The inputs as this executor misreads them."""
        return inputs


class MaskOffByOne(WrongExecutor):
    """the mask is off by one: the last row of a subtree does not see its ancestors"""

    def changed(self, inputs: PassInputs) -> PassInputs:
        # a row always sees itself, or there would be nothing to attend to
        end_BT = torch.maximum(inputs.key_end_BT - 1, inputs.key_start_BT + 1)
        return dataclasses.replace(inputs, key_end_BT=end_BT)


class GrowsOtherTrees(WrongExecutor):
    """trees that grow in one call have other logits than passes"""

    @property
    def grows_paths(self) -> bool:
        return True

    def grow_paths(
        self,
        rows: Sequence[RowsToCommit],
        cache: Cache,
        output: OutputRows | None,
        paths: Sequence[ProbablePaths],
    ) -> list[GrownPaths]:
        chains = [RequestRows.chain(own.slot, own.prefix, own.tokens) for own in rows]
        inputs = PassInputs.of("chain", chains, self.device)
        logits_BNV = self.forward(inputs, cache, PassPlan(SequentialRunner(), (), "last")).logits_BNV
        return [GrownPaths(DraftLogits.over_all(1.1 * logits_NV)) for logits_NV in logits_BNV]


class SiblingsVisible(WrongExecutor):
    """the mask is causal: siblings are visible"""

    def changed(self, inputs: PassInputs) -> PassInputs:
        return dataclasses.replace(inputs, key_end_BT=torch.full_like(inputs.key_end_BT, 1 << 20))


class ClosedTreesOnly(WrongExecutor):
    """a growing tree's intervals are taken for those of a closed one"""

    def changed(self, inputs: PassInputs) -> PassInputs:
        index_BT = torch.arange(inputs.key_start_BT.shape[1], dtype=torch.int32).expand_as(inputs.key_start_BT)
        return dataclasses.replace(inputs, key_start_BT=index_BT)


class PositionOff(WrongExecutor):
    """a row's position is its place in the tree, not its depth"""

    def changed(self, inputs: PassInputs) -> PassInputs:
        row_N = torch.arange(inputs.width, dtype=torch.int32)
        return dataclasses.replace(inputs, position_BN=inputs.write_at_B[:, None] + row_N)


class BatchIndexForSlot(WrongExecutor):
    """the request's number in the batch is taken for its slot"""

    def changed(self, inputs: PassInputs) -> PassInputs:
        return dataclasses.replace(inputs, slot_B=torch.arange(inputs.batch, dtype=torch.int32))


class FirstPrefixForAll(WrongExecutor):
    """all requests are taken to have the first one's prefix"""

    def changed(self, inputs: PassInputs) -> PassInputs:
        moved_B = inputs.prefix_B[0] - inputs.prefix_B
        if bool((moved_B > 0).any()):
            # there a request would read keys that it has not
            return inputs
        return dataclasses.replace(inputs, prefix_B=inputs.prefix_B + moved_B, write_at_B=inputs.write_at_B + moved_B)


class WritesOneColumnOff(WrongExecutor):
    """keys and values are written one column off"""

    class WrongCache(NumpyCache):
        def write(self, layer: int, slot: int, column: int, k_nGD: Array, v_nGD: Array) -> None:
            super().write(layer, slot, max(0, column - 1), k_nGD, v_nGD)


class PaddingWrittenAtItsPosition(WrongExecutor):
    """padding is written, at its position: over the first row of the pass"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        output = super().forward(inputs, cache, plan)
        assert isinstance(cache, NumpyCache)
        for b in range(inputs.batch):
            if int(inputs.live_B[b]) < inputs.width:
                cache.k_LSGCD[:, int(inputs.slot_B[b]), :, int(inputs.prefix_B[b])] = 0
        return output


class PaddingPushedBack(WrongExecutor):
    """where padding has no room at the end of a slot, all rows are written further in front, over committed keys"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        assert isinstance(cache, NumpyCache)
        # as a dynamic slice update clamps where it begins
        last = cache.capacity - inputs.width
        moved = dataclasses.replace(inputs, write_at_B=inputs.write_at_B.clamp_max(max(0, last)))
        output = super().forward(inputs, cache, plan)
        for b in range(inputs.batch):
            slot, live = int(inputs.slot_B[b]), int(inputs.live_B[b])
            source, target = int(inputs.write_at_B[b]), int(moved.write_at_B[b])
            for storage in (cache.k_LSGCD, cache.v_LSGCD):
                storage[:, slot, :, target : target + live] = storage[:, slot, :, source : source + live].copy()
        return output


class CommitMovesNothing(WrongExecutor):
    """a commit moves nothing"""

    class WrongCache(NumpyCache):
        def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
            pass


class CommitOfValuesForgotten(WrongExecutor):
    """a commit moves keys and forgets values"""

    class WrongCache(NumpyCache):
        def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
            kept = self.v_LSGCD.copy()
            super().commit(slots, prefixes, paths)
            self.v_LSGCD = kept


class CommitInTheFirstSlot(WrongExecutor):
    """a commit moves the rows of the first slot only"""

    class WrongCache(NumpyCache):
        def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
            super().commit(slots[:1], prefixes[:1], paths[:1])


class CommitOverwrites(WrongExecutor):
    """a commit moves row after row from the last one on, and overwrites what it has yet to read"""

    class WrongCache(NumpyCache):
        def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
            for slot, prefix, path in zip(slots, prefixes, paths, strict=True):
                for place, row in reversed(list(enumerate(path))):
                    for storage in (self.k_LSGCD, self.v_LSGCD):
                        storage[:, slot, :, prefix + place] = storage[:, slot, :, prefix + row]


class ReserveForgets(WrongExecutor):
    """a larger cache begins empty"""

    class WrongCache(NumpyCache):
        def reserve(self, slots: int, capacity: int) -> None:
            larger = slots > self.slots or capacity > self.capacity
            super().reserve(slots, capacity)
            if larger:
                self.k_LSGCD[:], self.v_LSGCD[:] = 0, 0


class RolledBackIsSeen(WrongExecutor):
    """a slot never gets shorter: what was rolled back is still seen"""

    class WrongCache(NumpyCache):
        longest: dict[int, int]

        def __init__(self, config: ModelConfig, layers: int) -> None:
            super().__init__(config, layers)
            self.longest = {}

    def _request(self, inputs: PassInputs, b: int, cache: NumpyCache, taps: tuple[int, ...]) -> RequestPass:
        assert isinstance(cache, RolledBackIsSeen.WrongCache)
        request = super()._request(inputs, b, cache, taps)
        longest = cache.longest[request.slot] = max(cache.longest.get(request.slot, 0), request.prefix)
        behind = max(0, longest - request.seen_nS.shape[1])
        request.seen_nS = np.pad(request.seen_nS, ((0, 0), (0, behind)), constant_values=True)
        return request


class TapsOfTheLayerBefore(WrongExecutor):
    """hidden states are those of the layer before"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        wanted = dataclasses.replace(plan, taps=tuple(sorted({max(0, layer - 1) for layer in plan.taps})))
        output = super().forward(inputs, cache, wanted)
        hidden = {layer: output.hidden[max(0, layer - 1)] for layer in plan.taps}
        return dataclasses.replace(output, hidden=hidden)


class TapsOfTheOtherRequest(WrongExecutor):
    """hidden states of the requests are swapped"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        output = super().forward(inputs, cache, plan)
        return dataclasses.replace(output, hidden={layer: h_BNM.flip(0) for layer, h_BNM in output.hidden.items()})


class LastRowIsPadding(WrongExecutor):
    """the last row is taken for the last live one"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        if plan.logits != "last":
            return super().forward(inputs, cache, plan)
        output = super().forward(inputs, cache, dataclasses.replace(plan, logits="all"))
        return dataclasses.replace(output, logits_BNV=output.logits_BNV[:, -1:])


class LastRowOfTheFirstRequest(WrongExecutor):
    """the last row's logits are those of the row where the first request ends"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        if plan.logits != "last":
            return super().forward(inputs, cache, plan)
        output = super().forward(inputs, cache, dataclasses.replace(plan, logits="all"))
        row = int(inputs.live_B[0]) - 1
        return dataclasses.replace(output, logits_BNV=output.logits_BNV[:, row : row + 1])


class NoneIsAll(WrongExecutor):
    """logits are computed where nobody wants them"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        logits = "all" if plan.logits == "none" else plan.logits
        return super().forward(inputs, cache, dataclasses.replace(plan, logits=logits))


class CutsFromTheFront(WrongExecutor):
    """a cut takes the first so many layers"""

    def cut(self, layers: Sequence[int]) -> NumpyExecutor:
        return super().cut(range(len(layers)))


class RunsAnything(WrongExecutor):
    """a runner that it does not know is run as a sequential one"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        return super().forward(inputs, cache, dataclasses.replace(plan, runner=SequentialRunner()))


class BucketsTooSmall(WrongExecutor):
    """passes larger than the largest bucket are cut to it"""

    def rows_of(self, rows: int) -> int:
        return min(128, 1 << (rows - 1).bit_length())


class NotANumber(WrongExecutor):
    """a row's logits are NaN"""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        output = super().forward(inputs, cache, plan)
        return dataclasses.replace(output, logits_BNV=output.logits_BNV * np.nan)


def load(wrong: type[WrongExecutor]) -> Callable[[TensorSource, torch.dtype], Executor]:
    """What makes a wrong executor of a model's weights."""
    return lambda source, dtype: wrong(NumpyModel.load(source))
