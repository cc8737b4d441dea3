"""A torch executor whose short passes are captured: one graph for each size of pass, replayed with other inputs.

A pass of a captured size costs one upload, one launch and one copy of what it returns. Its inputs lie in one tensor
that never moves; the operations are those of the torch executor, on padded sizes and without a length that the host
knows.

Legend: B requests, N rows of a request, T tree slots of a request.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.draft_levels import DraftLevels
from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.model.kv_cache import KVCache, is_exact
from spec_sdk.model.path_levels import FedPaths, PathLevels
from spec_sdk.model.powers_of_two import power_of_two
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import PLAIN
from spec_sdk.model.torch_executor import TorchExecutor, last_live_row
from spec_sdk.model.unread_reports import UnreadReports
from spec_sdk.ops import Ops, host_reads
from spec_sdk.ops.grown_paths import ClosedTrees, GrownPaths, OutputRows, ProbablePaths, RowsToCommit
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.uploads import upload
from spec_sdk.say import say

MOST_ROWS = 128
"""Longer passes, such as chunks of prompts, are not captured: there are too many sizes, and launches take no time."""
LEAST_COLUMNS = 1024
MOST_GRAPHS = 64
"""Each keeps its outputs and work space. Where a cache has moved, its graphs make room for others."""
LEAST_COMMITTED = 8
"""Rows that are padded to where a tree's levels are captured with them: so that few sizes come, and a pass over so many
takes hardly longer than over one.
"""
MOST_COMMITTED = 2 * LEAST_COMMITTED
"""Rows of each of several requests that are fed with their trees' levels: all are padded to those of the longest."""
STALE_AFTER = 2000
"""Passes in which a graph was of no use, after which it makes room too. Sooner, where more sizes come by turns than are
kept, captures would take longer than they save: what finds no room runs without.
"""

Capture = Callable[[Callable[[], PassOutput]], tuple[Callable[[], object], PassOutput]]
"""Captures a function of no arguments: what repeats it on the same memory, and the output that then holds the results.

Called for inputs that are a real pass, which it may run before and more than once. Raises :class:`CannotCapture` for
what runs and cannot be captured.
"""


class CannotCapture(Exception):
    """Why a function that runs cannot be captured."""


@dataclass(frozen=True)
class CapturedPass:
    """``flat_I``: where the inputs of :meth:`replay` are put, and ``features_BNM`` what is fed besides tokens, if
    anything is; ``output``: what every replay writes anew.
    """

    flat_I: torch.Tensor
    replay: Callable[[], object]
    output: PassOutput
    features_BNM: torch.Tensor | None = None


@dataclass(frozen=True)
class CapturedLevels(CapturedPass):
    """``root_BR``, ``draw_BX``: where the roots' logits and the numbers of draws are put besides. The output has what
    was picked by as its logits, and tokens as what was made of them.
    """

    root_BR: torch.Tensor = field(kw_only=True)
    draw_BX: torch.Tensor = field(kw_only=True)


@dataclass(frozen=True)
class CapturedPaths(CapturedPass):
    """``prices``: where those are put that a tree is closed by, if one is."""

    prices: torch.Tensor | None = field(kw_only=True)


@dataclass
class KeptGraph:
    """``cache``: the one that it reads, which lay at ``place``; ``last_pass``: the number of the pass that used it
    last.
    """

    captured: Any
    cache: weakref.ref[KVCache]
    place: Hashable
    last_pass: int = 0

    def has_moved(self) -> bool:
        """Whether the cache is gone, or lies elsewhere now."""
        cache = self.cache()
        return cache is None or cache.lies_at != self.place


class GraphExecutor(TorchExecutor):
    """Captures passes of runners that are ``capturable``, by ``capture``, when a size first comes.

    Sizes are powers of two, so that few come. One that cannot be captured runs as in the torch executor from then on; a
    line on stderr says so of the first. The attention level with a runner whose slices depend on lengths that only the
    host knows runs as in the torch executor.

    ``insists``: whether a form of the cache that captured passes cannot read is refused; if not, nothing is captured
    with it.
    """

    def __init__(self, decoder: Decoder, ops: Ops, capture: Capture, insists: bool = True) -> None:
        super().__init__(decoder, ops)
        self._insists = insists
        # cross-attention keeps K and V in a cache of its own
        self.one_launch = not (self.config.encoder or decoder.data_dependent)
        self._capture = capture
        # the first is the one that was used longest ago
        self._captured: dict[Hashable, KeptGraph] = {}
        self._passes = 0
        self._cannot: set[Hashable] = set()
        self._rotations: tuple[int, ...] = ()
        self.captures = 0
        """Passes that were captured so far."""
        self.feeds_children: tuple[int, Callable[[torch.Tensor], torch.Tensor]] | None = None
        """Of a draft head: after which layer, and how, what a node's children are fed is made of its state."""

    def keep_cache_in(self, form: str) -> None:
        if not is_exact(form, self.dtype):
            if self._insists:
                raise UserError(
                    "model.kv_cache: captured passes read the cache in place; use backend.compile=false, or auto"
                )
            self.one_launch = False
            super().keep_cache_in(form)

    def new_cache(self) -> KVCache:
        cache = super().new_cache()
        if self.one_launch:
            cache.doubles_up_to = self.config.max_context + MOST_ROWS
        return cache

    def rows_of(self, rows: int) -> int:
        return power_of_two(rows) if self.one_launch and rows <= MOST_ROWS else rows

    def slots_of(self, slots: int) -> int:
        return power_of_two(slots) if self.one_launch and slots <= MOST_ROWS else slots

    @torch.no_grad()
    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        if not (self.one_launch and can_be_captured(inputs, plan)):
            return super().forward(inputs, cache, plan)
        assert isinstance(cache, KVCache)
        columns = columns_of(inputs.columns, cache)
        key = key_of(inputs, cache, plan, columns)
        captured: CapturedPass | None
        captured = self._found(key, cache, lambda: self._capture_pass(inputs, cache, plan, columns))
        if captured is None:
            return super().forward(inputs, cache, plan)
        inputs.put_into(captured.flat_I)
        if captured.features_BNM is not None and inputs.features_BNM is not None:
            captured.features_BNM.copy_(inputs.features_BNM)
        captured.replay()
        # the next pass overwrites them
        output = changed(captured.output, torch.clone)
        if isinstance(output.reports, UnreadReports):
            return replace(output, reports=output.reports.of(inputs))
        return output

    @torch.no_grad()
    def draft_levels(
        self, levels: DraftLevels, cache: Cache, runner: BlockRunner
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        widest = max(inputs.width for inputs in levels.inputs)
        slots = max(inputs.slots for inputs in levels.inputs)
        if not (self.one_launch and runner.capturable and max(widest, slots) <= MOST_ROWS):
            return None
        assert isinstance(cache, KVCache)
        columns, plan = columns_of(levels.columns, cache), PassPlan(runner)
        root = levels.root_BR
        key = levels.shape, root.shape, root.dtype, levels.limit, levels.filtered, columns, cache.lies_at, plan
        captured: CapturedLevels | None
        captured = self._found(key, cache, lambda: self._capture_levels(levels, cache, plan, columns))
        if captured is None:
            return None
        for place, numbers in ((captured.flat_I, levels.flat), (captured.draw_BX, levels.draw_BX)):
            if numbers.numel():
                upload(numbers, place)
        captured.root_BR.copy_(root)
        captured.replay()
        made = captured.output.made
        assert made is not None
        return captured.output.logits_BNV.clone(), made.clone()

    @property
    def grows_paths(self) -> bool:
        return self.one_launch

    @torch.no_grad()
    def grow_paths(
        self,
        rows: Sequence[RowsToCommit],
        cache: Cache,
        output: OutputRows | None,
        paths: Sequence[ProbablePaths],
    ) -> list[GrownPaths] | None:
        first, token_R = paths[0], self.decoder.token_R
        runner, vocabulary = runner_of_groups(first.groups), self.vocabulary
        if token_R is None:
            vocabulary = min(vocabulary, first.vocabulary or vocabulary)
        limit, most_rows = vocabulary if token_R is None else len(token_R), max(len(own.tokens) for own in rows)
        most_fed = max(own.most_fed for own in paths)
        taken = runner.capturable and max(most_rows, most_fed) <= MOST_ROWS and 0 < first.width <= limit
        # a pass says what is wrong with a token that there is not
        known = all(min(own.tokens) >= 0 and max(own.tokens) < self.config.vocab_size for own in rows)
        drawn = any(own.draws is not None for own in paths)
        if not (self.one_launch and taken and known) or output is not None or drawn:
            return None
        assert isinstance(cache, KVCache)
        padded_rows = max(LEAST_COMMITTED, self.rows_of(most_rows))
        if len(rows) > 1 and padded_rows > MOST_COMMITTED:
            return None
        levels, given = PathLevels.of(rows, paths, padded_rows), [own.features_NM for own in rows]
        if levels is None:
            return None
        columns, plan = columns_of(levels.columns, cache), PassPlan(runner)
        features = [own_NM for own_NM in given if own_NM is not None]
        fed = None if not features else (features[0].shape[-1], features[0].dtype)
        key = "paths", levels.shape, fed, columns, cache.lies_at, first.groups, limit
        prices = None if levels.closing is None else levels.closing.prices(paths)
        captured: CapturedPaths | None
        captured = self._found(
            key, cache, lambda: self._capture_paths(levels, cache, plan, columns, features, limit, prices)
        )
        if captured is None:
            return None
        upload(levels.flat, captured.flat_I)
        if captured.prices is not None and prices is not None:
            upload(prices, captured.prices)
        if captured.features_BNM is not None:
            for place_NM, own_NM in zip(captured.features_BNM, features, strict=True):
                place_NM[: len(own_NM)].copy_(own_NM)
        captured.replay()
        # the next pass overwrites them
        made = FedPaths.of(changed(captured.output, torch.clone))
        reading = host_reads.begin(made.numbers)
        if levels.closing is not None and first.closing is not None:
            nodes = levels.closing.most + 1
            first.closing.tell(ClosedTrees(made.numbers[:, -3 * nodes :].view(-1, 3, nodes).int(), reading))
        (numbers,) = host_reads.read(reading)
        return levels.grown(made, numbers, token_R, vocabulary, self.ops)

    def cut(self, layers: Sequence[int]) -> GraphExecutor:
        made = self._running(self.decoder.subset(layers))
        made.bits_vary = self.bits_vary
        made._cache_form = self._cache_form
        return made

    def _running(self, decoder: Decoder) -> GraphExecutor:
        made = GraphExecutor(decoder, self.ops, self._capture, self._insists)
        made.one_launch = made.one_launch and self.one_launch
        return made

    def _found(self, key: Hashable, cache: KVCache, capture: Callable[[], CapturedPass]) -> Any:
        """What was captured under this key, now if it was not; None if it cannot be. It is about to run."""
        self.ops.before_pass()
        if key in self._cannot:
            return None
        rotations = self.decoder.reserve_rotations(cache.capacity)
        if rotations != self._rotations:
            # a larger table took the place of the one that graphs read, perhaps in a pass that was not captured
            self._captured.clear()
            self._rotations = rotations
        self._passes += 1
        kept = self._captured.pop(key, None)
        if kept is None:
            if not self._has_room():
                return None
            try:
                kept = KeptGraph(capture(), weakref.ref(cache), cache.lies_at)
            except CannotCapture as error:
                if not self._cannot:
                    say(f"backend.compile: a pass that cannot be captured runs without: {error}")
                self._cannot.add(key)
                return None
            self.captures += 1
        kept.last_pass = self._passes
        self._captured[key] = kept
        return kept.captured

    def _has_room(self) -> bool:
        """Whether one more may be captured, for which one that is of no use is dropped."""
        if len(self._captured) < MOST_GRAPHS:
            return True
        self._captured = {key: kept for key, kept in self._captured.items() if not kept.has_moved()}
        if len(self._captured) < MOST_GRAPHS:
            return True
        oldest, kept = next(iter(self._captured.items()))
        stale = self._passes - kept.last_pass > STALE_AFTER
        if stale:
            del self._captured[oldest]
        return stale

    def _capture_levels(self, levels: DraftLevels, cache: KVCache, plan: PassPlan, columns: int) -> CapturedLevels:
        flat_I, draw_BX = levels.flat.to(self.device), levels.draw_BX.to(self.device)
        root_BR = levels.root_BR.clone()
        fixed = levels.over(flat_I, root_BR, draw_BX, columns)

        def run() -> PassOutput:
            def logits_of(inputs: PassInputs) -> torch.Tensor:
                return TorchExecutor.forward(self, inputs, cache, plan).logits_BNV

            values, token_BX = fixed.run(logits_of, self.ops, self.decoder.token_R)
            return PassOutput(values, made=token_BX)

        return CapturedLevels(flat_I, *self._capture(run), root_BR=root_BR, draw_BX=draw_BX)

    def _capture_paths(
        self,
        levels: PathLevels,
        cache: KVCache,
        plan: PassPlan,
        columns: int,
        features: Sequence[torch.Tensor],
        limit: int,
        prices: torch.Tensor | None,
    ) -> CapturedPaths:
        flat_I, features_BNM = levels.flat.to(self.device), None
        if features:
            features_BNM = features[0].new_zeros((len(features), levels.passes[0].width, features[0].shape[-1]))
            for place_NM, own_NM in zip(features_BNM, features, strict=True):
                place_NM[: len(own_NM)] = own_NM
        on_device = None if prices is None else prices.to(self.device)
        taps = () if self.feeds_children is None else (self.feeds_children[0],)
        # rows that are committed are fed as by any pass
        of_rows, of_levels = PassPlan(PLAIN, taps, "last"), replace(plan, taps=taps)

        def feed(inputs: PassInputs, level_features: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
            is_root = inputs.kind == "chain"
            inputs = inputs.with_features(features_BNM if is_root else level_features)
            output = TorchExecutor.forward(self, inputs, cache, of_rows if is_root else of_levels)
            if self.feeds_children is None:
                return output.logits_BNV, None
            layer, state_of = self.feeds_children
            left_BNM = output.hidden[layer]
            return output.logits_BNV, state_of(last_live_row(left_BNM, inputs) if is_root else left_BNM)

        def run() -> PassOutput:
            passes = levels.over(flat_I, columns)
            return levels.run(passes, feed, self.ops, self.decoder.token_R, limit, on_device).output

        return CapturedPaths(flat_I, *self._capture(run), features_BNM, prices=on_device)

    def _capture_pass(self, inputs: PassInputs, cache: KVCache, plan: PassPlan, columns: int) -> CapturedPass:
        assert inputs.flat is not None
        flat_I, given = inputs.flat.clone(), inputs.features_BNM
        features_BNM = None if given is None else given.clone()
        fixed = PassInputs.over(flat_I, inputs.kind, *inputs.sizes, columns=columns, features_BNM=features_BNM)
        replay, output = self._capture(lambda: TorchExecutor.forward(self, fixed, cache, plan))
        return CapturedPass(flat_I, replay, output, features_BNM)


def runner_of_groups(groups: tuple[tuple[int, ...], ...] | None) -> BlockRunner:
    """What runs a model whose consecutive layers are in these groups; None: one after the other."""
    return PLAIN if groups is None or max(map(len, groups)) < 2 else LayerParallelRunner.of(groups)


def can_be_captured(inputs: PassInputs, plan: PassPlan) -> bool:
    """Whether the same graph serves all passes of this one's size."""
    return (
        plan.runner.capturable
        and inputs.width <= MOST_ROWS
        and inputs.slots <= MOST_ROWS
        and inputs.is_flat
        and inputs.host_knows
    )


def columns_of(columns: int | None, cache: KVCache) -> int:
    """The bucket of so many cache columns, which a pass sees at most: kernels share out their work by it."""
    return min(cache.capacity, max(LEAST_COLUMNS, power_of_two(columns or cache.capacity)))


def key_of(inputs: PassInputs, cache: KVCache, plan: PassPlan, columns: int) -> Hashable:
    """All that a captured pass depends on beside the integers of its inputs: sizes, the plan, and the cache's place."""
    given = inputs.features_BNM
    fed = None if given is None else (given.shape[-1], given.dtype)
    return (inputs.kind, *inputs.sizes, columns, fed), cache.lies_at, plan


def tensors_of_output(output: PassOutput) -> list[torch.Tensor]:
    """Every tensor of an output, in the order of :func:`changed`."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    changed(output, note)
    return found


def changed(output: PassOutput, change: Callable[[torch.Tensor], torch.Tensor]) -> PassOutput:
    """The output with ``change`` applied to each of its tensors, in a fixed order."""
    reports, token_R, made = output.reports, output.token_R, output.made
    return PassOutput(
        change(output.logits_BNV),
        {layer: change(h_BNM) for layer, h_BNM in output.hidden.items()},
        reports.changed(change) if isinstance(reports, UnreadReports) else reports,
        None if token_R is None else change(token_R),
        None if made is None else change(made),
    )
