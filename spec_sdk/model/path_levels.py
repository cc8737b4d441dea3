"""The most probable paths behind a root, level after level, picked and fed without asking the host between.

What :mod:`spec_sdk.model.draft_levels` is for trees of a known shape. Here logits say which nodes of a level have
children. They do not say how many nodes a level has: so all passes have known sizes, and depths. What hangs on
parents is who sees whom, which is worked out where the logits are.

Legend: B requests, K nodes of a level, W children of each, X nodes that are fed, the root among them, S nodes so far, R
tokens that can be drafted, M model dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.executor import PassOutput
from spec_sdk.model.powers_of_two import power_of_two
from spec_sdk.model.tree_closing import ClosingRule
from spec_sdk.model.tree_intervals import intervals
from spec_sdk.ops import Ops
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.grown_paths import (
    GrownLevel,
    GrownPaths,
    ProbablePaths,
    RowsToCommit,
    ToppedLogits,
    TreeClosing,
)
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows, placed_in

CPU = torch.device("cpu")
WIDEST = 2
"""Times the rows that each request's own tree would have in a pass, up to which they share one with the widest."""
Feed = Callable[[PassInputs, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor | None]]
"""A pass, and the features [B, K, M] of a level that a head is fed → logits [B, K, R] of its nodes, of rows that are
committed those of the last, and what a head feeds their children [B, K, M].
"""


@dataclass(frozen=True)
class FedPaths:
    """What was fed, on the device: ``logits_BXR``; of a head, what nodes feed their children, ``state_BXM``; and in one
    tensor, float64 [B, …], each node's most probable tokens and their log-probabilities [2, X, W], of all nodes but the
    root their tokens and parents [2, X - 1], and the closed tree [3, N] where it is wanted.
    """

    logits_BXR: torch.Tensor
    state_BXM: torch.Tensor | None
    numbers: torch.Tensor

    @property
    def output(self) -> PassOutput:
        """The same as what a capture keeps."""
        hidden = {} if self.state_BXM is None else {0: self.state_BXM}
        return PassOutput(self.logits_BXR, hidden, made=self.numbers)

    @staticmethod
    def of(output: PassOutput) -> FedPaths:
        """Those whose :attr:`output` it is."""
        assert output.made is not None
        return FedPaths(output.logits_BNV, output.hidden.get(0), output.made)


@dataclass(frozen=True)
class PathLevels:
    """Rows of each request that are to be committed, and the levels that follow the last of them: ``counts`` nodes
    each, of every request.

    ``passes``: over the rows, and those that feed the levels, by kind and sizes. ``flat``: the integers of all of them,
    one after the other, in host memory; tokens and intervals of levels are not known. ``columns``: most cache columns
    that a row sees. ``closing``: how their trees are closed, if that is wanted.
    """

    width: int
    counts: tuple[int, ...]
    passes: tuple[PassInputs, ...]
    flat: torch.Tensor
    columns: int
    closing: ClosingRule | None = None

    @staticmethod
    def of(rows: Sequence[RowsToCommit], paths: Sequence[ProbablePaths], padded_rows: int) -> PathLevels | None:
        """The pass over the rows has ``padded_rows`` of each request. None where their levels are not of one shape."""
        counts = counts_of_all(paths)
        if counts is None:
            return None
        roots = [RequestRows.chain(own.slot, own.prefix, own.tokens) for own in rows]
        behind = [own.prefix + len(own.tokens) for own in rows]
        of_rows, levels = (
            PassInputs.of("chain", roots, CPU, padded_rows, padded_rows),
            LevelNumbers.of(len(rows), counts),
        )
        assert of_rows.flat is not None
        flat = torch.cat((of_rows.flat, levels.at([own.slot for own in rows], behind)))
        columns, closing = max(behind) + sum(counts), closing_of(paths, counts)
        return PathLevels(paths[0].width, counts, (of_rows, *levels.passes), flat, columns, closing)

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """All that the passes depend on beside their integers."""
        return self.width, self.counts, self.passes[0].sizes, self.closing

    def over(self, flat: torch.Tensor, columns: int) -> list[PassInputs]:
        """The passes with their integers in this tensor, which whoever writes there changes."""
        return placed_in(flat, self.passes, columns)

    def run(
        self,
        passes: Sequence[PassInputs],
        feed: Feed,
        ops: Ops,
        token_R: torch.Tensor | None = None,
        limit: int | None = None,
        prices: torch.Tensor | None = None,
    ) -> FedPaths:
        """Feed the rows, then level after level, in the ``passes`` of :meth:`over`; waits for nothing. ``token_R``: the
        tokens that logits are of; the first ``limit`` of them are drafted. ``prices``: what :attr:`closing` reads.
        """
        root, *levels = passes
        logits_BKR, state_BKM = feed(root, None)
        logits_BKR = logits_BKR[..., :limit]
        B, device, nodes = len(logits_BKR), logits_BKR.device, 1 + sum(self.counts)
        logits, states = [logits_BKR], [] if state_BKM is None else [state_BKM]
        tops = [self._top(logits_BKR, ops, token_R)]
        token, parent = list[torch.Tensor](), [torch.full((B, 1), -1, device=device)]
        ancestor_BSX = torch.eye(1, nodes, device=device).repeat(B, 1, 1)
        joint_BK, first = torch.zeros((B, 1), dtype=torch.float64, device=device), 0
        joints, picked = [joint_BK], list[torch.Tensor]()
        for inputs, count in zip(levels, self.counts, strict=True):
            logprob_BKW, token_BKW = tops[-1]
            joint_BC = (joint_BK[:, :, None] + logprob_BKW.double()).flatten(1)
            # of equal ones the first, as the host takes them
            best_BK = joint_BC.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values
            above_BK, size = first + best_BK // self.width, ancestor_BSX.shape[1]
            joint_BK, first = joint_BC.gather(1, best_BK), size
            joints.append(joint_BK)
            picked.append(best_BK)
            token.append(token_BKW.flatten(1).gather(1, best_BK))
            parent.append(above_BK)
            own_KX = torch.eye(size + count, nodes, device=device)[size:]
            of_parent_BKX = ancestor_BSX.take_along_dim(above_BK[:, :, None], 1)
            ancestor_BSX = torch.cat((ancestor_BSX, of_parent_BKX + own_KX), 1)
            start_BS, end_BS = intervals(torch.cat(parent, 1), ancestor_BSX[:, :, : size + count])
            # views of the integers that the pass reads
            inputs.token_BN.copy_(token[-1])
            inputs.query_start_BN.copy_(start_BS[:, size:])
            inputs.key_start_BT.copy_(start_BS[:, 1:])
            inputs.key_end_BT.copy_(end_BS[:, 1:])
            fed_BKM = torch.cat(states, 1).take_along_dim(above_BK[:, :, None], 1) if states else None
            logits_BKR, state_BKM = feed(inputs, fed_BKM)
            logits_BKR = logits_BKR[..., :limit]
            logits.append(logits_BKR)
            if state_BKM is not None:
                states.append(state_BKM)
            tops.append(self._top(logits_BKR, ops, token_R))
        logprob_BXW, token_BXW = (torch.cat(parts, 1) for parts in zip(*tops, strict=True))
        told = [token_BXW, logprob_BXW, *token, *parent[1:]]
        if self.closing is not None and prices is not None:
            joint_BXW = torch.cat(joints, 1)[:, :, None] + logprob_BXW.double()
            told.append(self.closing.closed(joint_BXW, token_BXW, picked, ancestor_BSX, prices))
        numbers = torch.cat([part.flatten(1).double() for part in told], 1)
        return FedPaths(torch.cat(logits, 1), torch.cat(states, 1) if states else None, numbers)

    def _top(
        self, logits_BKR: torch.Tensor, ops: Ops, token_R: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = ops.top_log_probabilities(logits_BKR.flatten(0, 1), self.width)
        logprob_BKW, place_BKW = (part.view(*logits_BKR.shape[:2], self.width) for part in found)
        return logprob_BKW, place_BKW if token_R is None else token_R[place_BKW]

    def grown(
        self, fed: FedPaths, numbers: torch.Tensor, token_R: torch.Tensor | None, vocabulary: int, ops: Ops
    ) -> list[GrownPaths]:
        """What :meth:`run` fed of each request, its ``numbers`` in host memory; the rest as :class:`DraftLogits` takes
        it.
        """

        def topped(logits_KR: torch.Tensor, logprob_KW: torch.Tensor, token_KW: torch.Tensor) -> DraftLogits:
            return ToppedLogits(logits_KR, token_R, vocabulary, ops, logprob_KW=logprob_KW, token_KW=token_KW)

        states: Sequence[torch.Tensor | None] = [None] * len(numbers)
        if fed.state_BXM is not None:
            states = fed.state_BXM.unbind()
        return [
            self._grown_of(*own, topped) for own in zip(fed.logits_BXR.unbind(), states, numbers.unbind(), strict=True)
        ]

    def _grown_of(
        self,
        logits_XR: torch.Tensor,
        state_XM: torch.Tensor | None,
        numbers: torch.Tensor,
        topped: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], DraftLogits],
    ) -> GrownPaths:
        nodes = 1 + sum(self.counts)
        tops = 2 * nodes * self.width
        token_XW, logprob_XW = numbers[:tops].view(2, nodes, self.width)
        token, parent = numbers[tops : tops + 2 * (nodes - 1)].view(2, nodes - 1).long().tolist()
        logprob_XW, token_XW = logprob_XW.float(), token_XW.long()

        def logits(own: slice) -> DraftLogits:
            return topped(logits_XR[own], logprob_XW[own], token_XW[own])

        levels, first = list[GrownLevel](), 1
        for count in self.counts:
            own = slice(first - 1, first - 1 + count)
            levels.append(GrownLevel(token[own], parent[own], logits(slice(first, first + count))))
            first += count
        return GrownPaths(logits(slice(1)), levels, state_XM)


@dataclass(frozen=True)
class LevelNumbers:
    """The integers of the passes over levels of so many nodes: ``base``, with the slot and the prefix of each one's
    ``owner``, the number of a request, times these.
    """

    passes: tuple[PassInputs, ...]
    base: torch.Tensor
    per_slot: torch.Tensor
    per_prefix: torch.Tensor
    owner: torch.Tensor

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(requests: int, counts: tuple[int, ...]) -> LevelNumbers:
        nothing, ones, numbered = [0] * requests, [1] * requests, [*range(requests)]
        passes, base = level_passes(counts, nothing, nothing)
        per_slot, per_prefix = (level_passes(counts, *at)[1] - base for at in ((ones, nothing), (nothing, ones)))
        # each hangs on one of the two at most
        return LevelNumbers(passes, base, per_slot, per_prefix, level_passes(counts, numbered, numbered)[1] - base)

    def at(self, slots: Sequence[int], prefixes: Sequence[int]) -> torch.Tensor:
        if len(slots) == 1:
            return self.base + slots[0] * self.per_slot + prefixes[0] * self.per_prefix
        slot, prefix = (torch.tensor(own, dtype=torch.int32)[self.owner] for own in (slots, prefixes))
        return self.base + slot * self.per_slot + prefix * self.per_prefix


def level_passes(
    counts: tuple[int, ...], slots: Sequence[int], prefixes: Sequence[int]
) -> tuple[tuple[PassInputs, ...], torch.Tensor]:
    """The passes that feed levels of so many nodes of each request, and their integers."""
    depth_S, passes, numbers = [0], list[PassInputs](), [torch.zeros(0, dtype=torch.int32)]
    for level, count in enumerate(counts, start=1):
        depth_S += [level] * count
        unknown = [0] * len(depth_S)
        rows = [
            RequestRows.growing(slot, prefix, unknown, depth_S, unknown, unknown, count)
            for slot, prefix in zip(slots, prefixes, strict=True)
        ]
        passes.append(PassInputs.of("growing", rows, CPU))
        assert passes[-1].flat is not None
        numbers.append(passes[-1].flat)
    return tuple(passes), torch.cat(numbers)


def closing_of(paths: Sequence[ProbablePaths], counts: tuple[int, ...]) -> ClosingRule | None:
    """How the trees are closed of which ``counts`` are fed; None where none are wanted, or none has a child."""
    closings, longest = [own.closing for own in paths if own.closing is not None], max(paths, key=lambda own: own.depth)
    kinds = {(closing.most, bool(closing.node_costs)) for closing in closings}
    if len(closings) < len(paths) or len(kinds) > 1:
        return None
    ((offered, priced),) = kinds
    last = None if offered else shares_of(longest)[len(counts)]
    rooms = [room_of(own, closing) for own, closing in zip(paths, closings, strict=True)]
    most = min(max(rooms), (1 + sum(counts)) * longest.width if last is None else sum(counts) + last)
    rows = [power_of_two(1 + min(room, most)) for room in rooms]
    # each request has as many rows in the target's pass as the one with most
    wide = len(rows) * max(rows) > WIDEST * sum(rows)
    return None if wide or most < 1 else ClosingRule(longest.width, counts, last, most, priced)


def room_of(paths: ProbablePaths, closing: TreeClosing) -> int:
    """Most nodes below the root that a request's closed tree may have."""
    rooms = [paths.nodes - 1]
    if closing.node_costs:
        rooms.append(len(closing.node_costs) - 1)
    rooms.append(closing.most or sum(shares_of(paths)))
    return min(rooms)


def shares_of(paths: ProbablePaths) -> tuple[int, ...]:
    """Nodes of each level, each with an equal share of the room, up to the first level that there is no room for.

    >>> shares_of(ProbablePaths(3, 4, 9)), shares_of(ProbablePaths(3, 3, 99)), shares_of(ProbablePaths(2, 1, 9))
    ((2, 2, 2, 2), (3, 3, 3), (2,))
    """
    return equal_shares(paths.width, paths.depth, paths.nodes)


@functools.lru_cache(maxsize=256)
def equal_shares(width: int, depth: int, nodes: int) -> tuple[int, ...]:
    """:func:`shares_of`, of which every launch asks several times."""
    counts, size = list[int](), 1
    for level in range(depth):
        count = min(width, (nodes - size) // (depth - level))
        if count < 1:
            break
        counts.append(count)
        size += count
    return tuple(counts)


def counts_of(paths: ProbablePaths) -> tuple[int, ...]:
    """Nodes of each level that is fed: all but the last.

    >>> counts_of(ProbablePaths(3, 4, 9)), counts_of(ProbablePaths(3, 4, 9, most_levels=1))
    ((2, 2, 2), (2,))
    """
    most = paths.depth - 1 if paths.most_levels is None else min(paths.depth - 1, paths.most_levels)
    return shares_of(paths)[:most]


def counts_of_all(paths: Sequence[ProbablePaths]) -> tuple[int, ...] | None:
    """Nodes of each level that is fed of all these requests; None where levels of one have other nodes than those of
    another. What is fed of a request beyond its own levels nobody asks for.
    """
    longest = shares_of(max(paths, key=lambda own: own.depth))
    if any(own.width != paths[0].width or shares_of(own) != longest[: own.depth] for own in paths):
        return None
    most = max(len(counts_of(own)) for own in paths)
    # each number of levels, of requests and of rows is a capture of its own
    fed = most + most % 2 if len(paths) > 1 else most
    return longest[: min(max(own.depth for own in paths) - 1, fed)]
