"""Two executors given the same passes: what the one under test returns is compared with what the reference returns.

Legend: B requests, N rows of a request, n live rows, M model dim, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from spec_sdk.model.executor import Executor, LogitRows, PassOutput, PassPlan
from spec_sdk.ops.host_reads import read
from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows
from spec_sdk.ops.vocabulary_row import spread

CPU = torch.device("cpu")


class SideBySide:
    """An executor and a reference, each with a cache, and how many tokens of every slot are committed in both.

    The reference is given each request alone and without padding. What differs is raised as AssertionError with
    ``where``, the request and the row. Every runner is made anew for either.
    """

    def __init__(
        self,
        executor: Executor,
        reference: Executor,
        make_runner: Callable[[], BlockRunner],
        tolerance: float,
        rng: random.Random,
        where: str,
    ) -> None:
        self.executor = executor
        self.reference = reference
        self.cache = executor.new_cache()
        self.rng = rng
        self.where = where
        self._make_runner = make_runner
        self._tolerance = tolerance
        self._reference_cache = reference.new_cache()
        self._runner, self._reference_runner = make_runner(), make_runner()
        for runner in (self._runner, self._reference_runner):
            runner.prepare(executor.layers)
        self._length: dict[int, int] = {}
        self.largest_error = 0.0
        """Of what was compared so far, as a part of the largest value of its kind."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.reference.config.vocab_size

    @property
    def context(self) -> int:
        """Most tokens of a request."""
        return self.reference.config.max_context

    def token(self) -> int:
        """Any token."""
        return self.rng.randrange(self.vocabulary)

    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""
        return self._length.get(slot, 0)

    def cut(self, layers: Sequence[int]) -> SideBySide:
        """The same of both models' ``layers``."""
        where = f"{self.where}, cut to layers {list(layers)}"
        executor, reference = self.executor.cut(layers), self.reference.cut(layers)
        return SideBySide(executor, reference, self._make_runner, self._tolerance, self.rng, where)

    def reserve(self, slots: int, capacity: int) -> None:
        """Room for ``slots`` requests of ``capacity`` tokens, in both."""
        for cache in (self.cache, self._reference_cache):
            cache.reserve(slots, capacity)

    def feed(
        self,
        slots: Sequence[int],
        sizes: Sequence[int],
        taps: Sequence[int] = (),
        logits: LogitRows = "all",
        rows: int = 0,
        tree_slots: int = 0,
    ) -> None:
        """Commit as many random tokens to every slot as ``sizes`` says, in one pass."""
        requests = [
            RequestRows.chain(slot, self.length(slot), [self.token() for _ in range(size)])
            for slot, size in zip(slots, sizes, strict=True)
        ]
        self.run("chain", requests, taps, logits, rows, tree_slots)
        self.commit(slots, [range(size) for size in sizes])

    def run(
        self,
        kind: PassKind,
        requests: Sequence[RequestRows],
        taps: Sequence[int] = (),
        logits: LogitRows = "all",
        rows: int = 0,
        tree_slots: int = 0,
    ) -> None:
        """One pass over the requests, which commits nothing.

        Each is padded to at least ``rows`` rows and ``tree_slots`` tree slots.
        """
        columns = [request.prefix + len(request.key_end) for request in requests]
        self.reserve(max(request.slot for request in requests) + 1, max(columns))
        executor = self.executor
        inputs = PassInputs.of(
            kind,
            requests,
            executor.device,
            rows=executor.rows_of(max(rows, *(len(request.token) for request in requests))),
            slots=executor.slots_of(max(tree_slots, *(len(request.key_end) for request in requests))),
        )
        found = on_host(
            executor.forward(inputs, self.cache, PassPlan(self._runner, tuple(taps), logits)), executor.vocabulary
        )
        self._check_shapes(found, inputs, taps, logits)
        for b, request in enumerate(requests):
            alone = PassInputs.of(kind, [request], CPU)
            plan = PassPlan(self._reference_runner, tuple(taps))
            expected = self.reference.forward(alone, self._reference_cache, plan)
            about = (
                f"{self.where}: a {kind} pass of {len(requests)} requests, number {b} (slot {request.slot}, prefix "
                f"{request.prefix}, {len(request.token)} rows)"
            )
            self._compare(about, found, b, expected, len(request.token), logits)

    def commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep these rows of the slots' last pass, in both."""
        prefixes = [self.length(slot) for slot in slots]
        for cache in (self.cache, self._reference_cache):
            cache.commit(slots, prefixes, paths)
        for slot, path in zip(slots, paths, strict=True):
            self._length[slot] = self.length(slot) + len(path)

    def roll_back(self, slot: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of a slot, or all but as many as its cache can go back to."""
        kept, expected = (cache.roll_back(slot, length) for cache in (self.cache, self._reference_cache))
        assert kept == expected, f"{self.where}: rolled back to {length}, {kept} tokens are kept, not {expected}"
        self._length[slot] = kept

    def _check_shapes(self, found: PassOutput, inputs: PassInputs, taps: Sequence[int], logits: LogitRows) -> None:
        rows = 1 if logits == "last" else inputs.width
        vocabulary = 0 if logits == "none" else self.reference.vocabulary
        _check_shape(f"{self.where}: logits ({logits})", found.logits_BNV, (inputs.batch, rows, vocabulary))
        assert set(found.hidden) == set(taps), (
            f"{self.where}: hidden states of the layers {sorted(found.hidden)}, {sorted(taps)} were asked for"
        )
        for layer, h_BNM in found.hidden.items():
            shape = (inputs.batch, inputs.width, self.reference.config.hidden_size)
            _check_shape(f"{self.where}: hidden states of layer {layer}", h_BNM, shape)

    def _compare(
        self, about: str, found: PassOutput, b: int, expected: PassOutput, live: int, logits: LogitRows
    ) -> None:
        # what was measured first: a wrong verdict says more than the wrong states that follow from it
        report = expected.reports[0] if expected.reports else None
        if report is not None:
            assert found.reports, f"{about}: no report, and its runner measures"
            self._same_report(about, found.reports[b], report)
        for layer, h_BNM in found.hidden.items():
            self._same(f"{about}, hidden states of layer {layer}", h_BNM[b, :live], expected.hidden[layer][0])
        expected_nV = expected.logits_BNV[0]
        if logits == "last":
            self._same(f"{about}, the last live row's logits", found.logits_BNV[b], expected_nV[-1:])
        elif logits == "all":
            self._same(f"{about}, logits", found.logits_BNV[b, :live], expected_nV)

    def _same(self, what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Raise AssertionError unless rows [n, …] are equal up to the tolerance."""
        found = found.float()
        off_n = (found - expected).abs().amax(-1)
        largest = float(expected.abs().max())
        allowed = self._tolerance * largest
        # a comparison with NaN is false
        wrong = (~(off_n <= allowed)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise AssertionError(f"{what}: row {row} is off by {float(off_n[row]):.1e}, {allowed:.1e} is allowed")
        if largest:
            self.largest_error = max(self.largest_error, float(off_n.max()) / largest)

    def _same_report(self, about: str, found: AttentionReport | None, expected: AttentionReport) -> None:
        assert found is not None, f"{about}: no report, and its runner measures"
        assert found.hit == expected.hit, f"{about}: predictions accepted {found.hit}, expected {expected.hit}"
        assert found.space == expected.space, f"{about}: errors in space {found.space}, expected {expected.space}"
        for layer, (ours, theirs) in enumerate(zip(found.row_error, expected.row_error, strict=True)):
            if ours is None or theirs is None:
                assert ours == theirs, f"{about}: errors of layer {layer} are {ours}, expected {theirs}"
                continue
            self._same(f"{about}, errors of layer {layer}", torch.tensor(ours)[:, None], torch.tensor(theirs)[:, None])


def on_host(output: PassOutput, vocabulary: int) -> PassOutput:
    """The output in host memory, with one read; its logits over the whole vocabulary."""
    logits_BNV, *hidden = read(output.logits_BNV, *output.hidden.values())
    if output.token_R is not None:
        logits_BNV = spread(logits_BNV, output.token_R.cpu(), vocabulary)
    return PassOutput(logits_BNV, dict(zip(output.hidden, hidden, strict=True)), output.reports)


def _check_shape(what: str, found: torch.Tensor, expected: tuple[int, ...]) -> None:
    assert tuple(found.shape) == expected, f"{what} have shape {list(found.shape)}, expected {list(expected)}"
