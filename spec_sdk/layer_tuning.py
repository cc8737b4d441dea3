"""Finding a layer-parallel strategy by measurement: which neighbouring groups of draft layers are worth merging.

A strategy is worth what the whole cycle yields (EasySpec, §3.2, for the draft's share of the time):

    (1 + E[accepted]) / (T_seq + (n - 1) * T_fuzzy + T_target)

tokens a second, where n tokens are drafted, the first by the precise calibration pass and the others fuzzily.

Legend: L layers, K branches (positions at which is drafted), n drafted tokens, Q = K*(n - 1) fuzzy nodes, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.executor import Executor, PassPlan
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.ops import DraftLogits
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.tree import TokenTree, TreeBuilder

Groups = list[list[int]]

TIMING_ROUNDS = 9


class AcceptanceMeter:
    """Counts how many drafted tokens the target would accept, at several positions of a text the target wrote.

    The draft model reads the text in plain passes, so its K and V are precise, as bonus calibration leaves them. From
    each position it drafts ``depth`` tokens. A token counts if it and all before it are the text's own, so the drafted
    tokens that matter are known beforehand: all positions and depths are branches of one tree, and a strategy is
    measured in one pass over it. ``width``: a token matches that is among the ``width`` most probable; 1 is a greedy
    chain, and for a tree it is the most that a beam of this width can keep.

    Raises UserError if text and drafts do not fit the draft model's context.
    """

    def __init__(
        self,
        executor: Executor,
        prompt: Sequence[int],
        answer: Sequence[int],
        depth: int,
        width: int = 1,
        most_positions: int | None = None,
    ) -> None:
        """``most_positions``: draft from at most so many positions, evenly spread; None: from every one."""
        self._executor, self._depth, self._width = executor, depth, width
        last = len(answer) - depth
        every = range(last + 1)
        step = 1 if most_positions is None else max(1, -(-len(every) // most_positions))
        positions = every[::step]
        self.positions = len(positions)
        session = Session(executor)
        session.prefill(0, prompt[:-1])
        (precise,) = session.score([0], [TokenTree.chain(prompt[-1], list(answer))])
        matches_N = self._matches(precise.logits_NV[:-1], answer).tolist()
        # where the first, precise token is wrong, nothing that follows counts
        self._begun = [at for at in positions if matches_N[at]]
        session.commit([0], [range(len(answer) + 1)])
        self._session = session
        if self._begun and depth > 1:
            self._prepare(session, len(prompt) - 1, answer)

    def accepted(self, runner: BlockRunner) -> int:
        """Tokens accepted over all positions when the fuzzy ones are drafted with ``runner``."""
        if not self._begun or self._depth == 1:
            return len(self._begun)
        output = self._executor.forward(self._inputs, self._session.cache, PassPlan(runner))
        drafted = DraftLogits(output.logits_BNV[0, : len(self._next_Q)], output.token_R, self._executor.vocabulary)
        logits_QV = drafted.full_KV
        matches_Kd = self._matches(logits_QV, self._next_Q).view(len(self._begun), self._depth - 1)
        return len(self._begun) + int(matches_Kd.int().cumprod(1).sum())

    def _matches(self, logits_NV: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        token_N = torch.tensor(tokens, device=logits_NV.device)
        return (logits_NV.topk(self._width).indices == token_N[:, None]).any(-1)

    def _prepare(self, session: Session, prefix: int, answer: Sequence[int]) -> None:
        """One pass over all branches. The text from its pending token on is the trunk, already in the cache."""
        begun, fuzzy = set(self._begun), self._depth - 1
        trunk_start, branch_start, number = [], [], 0
        for node in range(len(answer) + 1):
            trunk_start.append(number)
            number += 1
            if node in begun:
                branch_start.append(number)
                number += fuzzy
        start = trunk_start + [first + i for first in branch_start for i in range(fuzzy)]
        end = [number] * len(trunk_start) + [first + fuzzy for first in branch_start for _ in range(fuzzy)]
        positions = [prefix + 1 + at + i for at in self._begun for i in range(fuzzy)]
        if max(positions) >= session.context:
            raise UserError(
                f"position {max(positions)} lies outside the draft model's context of {session.context} tokens"
            )
        session.reserve(1, prefix + len(start))
        request = RequestRows(
            slot=0,
            prefix=prefix,
            write_at=prefix + len(trunk_start),
            token=[answer[at + i] for at in self._begun for i in range(fuzzy)],
            position=positions,
            query_start=start[len(trunk_start) :],
            key_start=start,
            key_end=end,
            key_position=[*range(prefix, prefix + len(trunk_start)), *positions],
        )
        executor = self._executor
        rows, slots = executor.rows_of(len(request.token)), executor.slots_of(len(start))
        self._inputs = PassInputs.of("growing", [request], executor.device, rows, slots)
        self._next_Q = [answer[at + i + 1] for at in self._begun for i in range(fuzzy)]


def mean_accepted(meters: Sequence[AcceptanceMeter], groups: Groups) -> float:
    """Accepted tokens per drafting, over all positions of all texts."""
    runner = LayerParallelRunner.of(groups)
    return sum(meter.accepted(runner) for meter in meters) / sum(meter.positions for meter in meters)


@dataclass(frozen=True)
class CycleTimes:
    """Seconds of a cycle's parts on this machine.

    ``plain``: a fuzzy pass's nodes through the draft model, plainly. ``saved``: group size → seconds that a group of
    that size takes less than its layers one by one (it may be negative). ``calibration``: the precise pass, T_seq.
    ``target``: the target's pass over the tree.
    """

    plain: float
    saved: Mapping[int, float]
    calibration: float
    target: float

    def fuzzy(self, groups: Groups) -> float:
        """Seconds of one fuzzy pass, T_fuzzy."""
        return self.plain - sum(self.saved[len(group)] for group in groups if len(group) > 1)

    def tokens_per_second(self, groups: Groups, accepted: float, depth: int) -> float:
        """What a cycle yields."""
        return (1 + accepted) / (self.calibration + (depth - 1) * self.fuzzy(groups) + self.target)


def measure_times(
    draft: Session,
    target: Session,
    text: Sequence[int],
    depth: int,
    width: int,
    max_size: int,
    wait: Callable[[], None],
) -> CycleTimes:
    """Time a cycle's parts behind the prefix ``text``: a drafted level of ``width`` nodes, a tree of ``depth`` levels.

    A group's saving is measured on whole passes whose layers are all in groups of that size: layers timed alone would
    stay in the caches between passes. All passes take turns. ``wait`` waits for queued work.
    """
    layers = draft.executor.layers
    for session in (draft, target):
        kept = session.open(0, text)
        session.prefill(0, text[kept:])
    growing, tree, level = TreeBuilder(text[-1]), TreeBuilder(text[-1]), [0] * width
    for token in range(width):
        growing.add(0, token, "chosen")
    for _ in range(depth):
        level = [tree.add(parent, token, "chosen") for token, parent in enumerate(level)]
    closed = tree.build().tree
    few = list(text[-2:])

    def calibrate() -> None:
        draft.feed([0], [few])
        kept = draft.truncate(0, len(text))
        draft.prefill(0, text[kept:])

    def grow(runner: BlockRunner) -> Callable[[], object]:
        def run() -> None:
            draft.runner = runner
            draft.grow([0], [growing], [width])

        return run

    runs: dict[str | int, Callable[[], object]] = {
        "calibration": calibrate,
        "target": lambda: target.score([0], [closed]),
        1: grow(SequentialRunner()),
    }
    for size in range(2, min(max_size, layers) + 1):
        runs[size] = grow(LayerParallelRunner.of(tiling(layers, size)))
    times: dict[str | int, list[float]] = {name: [] for name in runs}
    for round_number in range(TIMING_ROUNDS + 1):
        for name, run in runs.items():
            wait()
            began = time.perf_counter()
            run()
            wait()
            if round_number:  # the first warms up
                times[name].append(time.perf_counter() - began)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    saved = {
        size: (seconds[1] - seconds[size]) / (layers // size) for size in seconds if isinstance(size, int) and size > 1
    }
    return CycleTimes(seconds[1], saved, seconds["calibration"], seconds["target"])


def tiling(layers: int, size: int) -> Groups:
    """As many groups of ``size`` as fit, then layers alone."""
    full = layers // size * size
    return [*(list(range(i, i + size)) for i in range(0, full, size)), *([i] for i in range(full, layers))]


@dataclass(frozen=True)
class Strategy:
    """Groups, the tokens accepted per drafting with them, and the whole cycle's tokens a second."""

    groups: Groups
    accepted: float
    score: float


def greedy_merging(
    layers: int,
    evaluate: Callable[[Groups], Strategy],
    max_size: int,
    most_candidates: int = 0,
) -> Iterator[Strategy]:
    """Start with every layer alone; merge those neighbouring groups that raise the score most, until none does.

    Yields the start and every step. ``most_candidates``: from the second step on, try only so many merges: those that
    scored best when they were last tried, and always those with the group that was merged last. 0 tries all.
    """
    current = evaluate([[layer] for layer in range(layers)])
    yield current
    seen: dict[tuple[int, int], float] = {}
    while True:
        merges = [
            (left[0], right[-1])
            for left, right in zip(current.groups, current.groups[1:], strict=False)
            if len(left) + len(right) <= max_size
        ]
        # new pairs come first, then by the score of their last trial
        merges.sort(key=lambda span: -seen.get(span, float("inf")))
        new = sum(span not in seen for span in merges)
        tried = merges[: max(most_candidates, new)] if most_candidates else merges
        found = {span: evaluate(merged(current.groups, span)) for span in tried}
        seen.update({span: strategy.score for span, strategy in found.items()})
        best = max(found.values(), key=lambda strategy: strategy.score, default=current)
        if best.score <= current.score:
            return
        current = best
        yield current


def merged(groups: Groups, span: tuple[int, int]) -> Groups:
    """``groups`` with those from layer ``span[0]`` to layer ``span[1]`` made one."""
    before = [group for group in groups if group[-1] < span[0]]
    after = [group for group in groups if group[0] > span[1]]
    return [*before, list(range(span[0], span[1] + 1)), *after]
