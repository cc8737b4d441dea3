"""The most probable paths behind a root, level after level, picked and fed without asking the host between.

What :mod:`spec_sdk.model.draft_levels` is for trees of a known shape. Here logits say which nodes of a level have
children. They do not say how many nodes a level has: so all passes have known sizes, and depths. What hangs on
parents is who sees whom, which is worked out where the logits are.

Legend: K nodes of a level, W children of each, X nodes that are fed, the root among them, S nodes so far, R tokens that
can be drafted, M model dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.executor import PassOutput
from spec_sdk.model.tree_closing import ClosingRule
from spec_sdk.model.tree_intervals import intervals
from spec_sdk.ops import Ops
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.grown_paths import GrownLevel, GrownPaths, ProbablePaths, RowsToCommit, ToppedLogits
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows, placed_in

CPU = torch.device("cpu")
Feed = Callable[[PassInputs, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor | None]]
"""A pass, and the features [1, K, M] of a level that a head is fed → logits [K, R] of its nodes, of rows that are
committed those of the last, and what a head feeds their children [K, M].
"""


@dataclass(frozen=True)
class FedPaths:
    """What was fed, on the device: ``logits_XR``; of a head, what nodes feed their children, ``state_XM``; and in one
    tensor, float64, each node's most probable tokens and their log-probabilities [2, X, W], of all nodes but the root
    their tokens and parents [2, X - 1], and the closed tree [3, N] where one is wanted.
    """

    logits_XR: torch.Tensor
    state_XM: torch.Tensor | None
    numbers: torch.Tensor

    @property
    def output(self) -> PassOutput:
        """The same as what a capture keeps."""
        hidden = {} if self.state_XM is None else {0: self.state_XM[None]}
        return PassOutput(self.logits_XR[None], hidden, made=self.numbers)

    @staticmethod
    def of(output: PassOutput) -> FedPaths:
        """Those whose :attr:`output` it is."""
        assert output.made is not None
        state_BXM = output.hidden.get(0)
        return FedPaths(output.logits_BNV[0], None if state_BXM is None else state_BXM[0], output.made)


@dataclass(frozen=True)
class PathLevels:
    """Rows that are to be committed, and the levels that follow the last of them: ``counts`` nodes each.

    ``passes``: over the rows, and those that feed the levels, by kind and sizes. ``flat``: the integers of all of them,
    one after the other, in host memory; tokens and intervals of levels are not known. ``columns``: most cache columns
    that a row sees. ``closing``: how their tree is closed, if that is wanted.
    """

    width: int
    counts: tuple[int, ...]
    passes: tuple[PassInputs, ...]
    flat: torch.Tensor
    columns: int
    closing: ClosingRule | None = None

    @staticmethod
    def of(rows: RowsToCommit, paths: ProbablePaths, padded_rows: int) -> PathLevels:
        """The pass over the rows has ``padded_rows``."""
        counts, fed = counts_of(paths), len(rows.tokens)
        numbers, columns = PassNumbers.of(fed, padded_rows, counts), rows.prefix + fed + sum(counts)
        closing = ClosingRule.of(paths, counts)
        return PathLevels(paths.width, counts, numbers.passes, numbers.at(rows), columns, closing)

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
        logits_KR, state_KM = feed(root, None)
        logits_KR = logits_KR[:, :limit]
        device, nodes = logits_KR.device, 1 + sum(self.counts)
        logits, states, tops = [logits_KR], [] if state_KM is None else [state_KM], [self._top(logits_KR, ops, token_R)]
        token, parent = list[torch.Tensor](), [torch.full((1,), -1, device=device)]
        ancestor_SX = torch.eye(1, nodes, device=device)
        joint_K, first = torch.zeros(1, dtype=torch.float64, device=device), 0
        joints, picked = [joint_K], list[torch.Tensor]()
        for inputs, count in zip(levels, self.counts, strict=True):
            logprob_KW, token_KW = tops[-1]
            joint_KW = joint_K[:, None] + logprob_KW.double()
            # of equal ones the first, as the host takes them
            best_K = joint_KW.flatten().sort(descending=True, stable=True).indices[:count].sort().values
            above_K, size = first + best_K // self.width, len(ancestor_SX)
            joint_K, first = joint_KW.flatten()[best_K], size
            joints.append(joint_K)
            picked.append(best_K)
            token.append(token_KW.flatten()[best_K])
            parent.append(above_K)
            own_KX = torch.eye(size + count, nodes, device=device)[size:]
            ancestor_SX = torch.cat((ancestor_SX, ancestor_SX[above_K] + own_KX))
            start_S, end_S = intervals(torch.cat(parent), ancestor_SX[:, : size + count])
            # views of the integers that the pass reads
            inputs.token_BN.copy_(token[-1][None])
            inputs.query_start_BN.copy_(start_S[None, size:])
            inputs.key_start_BT.copy_(start_S[None, 1:])
            inputs.key_end_BT.copy_(end_S[None, 1:])
            logits_KR, state_KM = feed(inputs, torch.cat(states)[above_K][None] if states else None)
            logits_KR = logits_KR[:, :limit]
            logits.append(logits_KR)
            if state_KM is not None:
                states.append(state_KM)
            tops.append(self._top(logits_KR, ops, token_R))
        logprobs, tokens = (torch.cat(parts) for parts in zip(*tops, strict=True))
        told = [tokens, logprobs, *token, *parent[1:]]
        if self.closing is not None and prices is not None:
            joint_XW = torch.cat(joints)[:, None] + logprobs.double()
            told.append(self.closing.closed(joint_XW, tokens, picked, ancestor_SX, prices))
        numbers = torch.cat([part.flatten().double() for part in told])
        return FedPaths(torch.cat(logits), torch.cat(states) if states else None, numbers)

    def _top(
        self, logits_KR: torch.Tensor, ops: Ops, token_R: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprob_KW, place_KW = ops.top_log_probabilities(logits_KR, self.width)
        return logprob_KW, place_KW if token_R is None else token_R[place_KW]

    def grown(
        self, fed: FedPaths, numbers: torch.Tensor, token_R: torch.Tensor | None, vocabulary: int, ops: Ops
    ) -> GrownPaths:
        """What :meth:`run` fed, its ``numbers`` in host memory; the rest as :class:`DraftLogits` takes it."""
        nodes = 1 + sum(self.counts)
        tops = 2 * nodes * self.width
        token_XW, logprob_XW = numbers[:tops].view(2, nodes, self.width)
        token, parent = numbers[tops : tops + 2 * (nodes - 1)].view(2, nodes - 1).long().tolist()
        logprob_XW, token_XW = logprob_XW.float(), token_XW.long()

        def logits(own: slice) -> DraftLogits:
            children = {"logprob_KW": logprob_XW[own], "token_KW": token_XW[own]}
            return ToppedLogits(fed.logits_XR[own], token_R, vocabulary, ops, **children)

        levels, first = list[GrownLevel](), 1
        for count in self.counts:
            own = slice(first - 1, first - 1 + count)
            levels.append(GrownLevel(token[own], parent[own], logits(slice(first, first + count))))
            first += count
        return GrownPaths(logits(slice(1)), levels, fed.state_XM)


@dataclass(frozen=True)
class PassNumbers:
    """The integers of the passes over so many rows and over the levels behind them: ``base``, with the slot and the
    prefix times these, and the rows' tokens in front.
    """

    passes: tuple[PassInputs, ...]
    base: torch.Tensor
    per_slot: torch.Tensor
    per_prefix: torch.Tensor

    @staticmethod
    @functools.lru_cache(maxsize=512)
    def of(fed: int, padded_rows: int, counts: tuple[int, ...]) -> PassNumbers:
        passes, base = passes_of(fed, padded_rows, counts, 0, 0)
        per_slot, per_prefix = (passes_of(fed, padded_rows, counts, *at)[1] - base for at in ((1, 0), (0, 1)))
        return PassNumbers(passes, base, per_slot, per_prefix)

    def at(self, rows: RowsToCommit) -> torch.Tensor:
        numbers = self.base + rows.slot * self.per_slot + rows.prefix * self.per_prefix
        numbers[: len(rows.tokens)] = torch.tensor(rows.tokens, dtype=torch.int32)
        return numbers


def passes_of(
    fed: int, padded_rows: int, counts: tuple[int, ...], slot: int, prefix: int
) -> tuple[tuple[PassInputs, ...], torch.Tensor]:
    """The passes that feed so many rows and then levels of so many nodes, and their integers; no tokens are known."""
    root = RequestRows.chain(slot, prefix, [0] * fed)
    depth_S, passes = [0], [PassInputs.of("chain", [root], CPU, padded_rows, padded_rows)]
    for level, count in enumerate(counts, start=1):
        depth_S += [level] * count
        unknown = [0] * len(depth_S)
        rows = RequestRows.growing(slot, prefix + fed, unknown, depth_S, unknown, unknown, count)
        passes.append(PassInputs.of("growing", [rows], CPU))
    return tuple(passes), torch.cat([inputs.flat for inputs in passes if inputs.flat is not None])


def counts_of(paths: ProbablePaths) -> tuple[int, ...]:
    """Nodes of each level that is fed: all but the last, each with an equal share of the room.

    >>> counts_of(ProbablePaths(3, 4, 9)), counts_of(ProbablePaths(3, 3, 99)), counts_of(ProbablePaths(2, 1, 9))
    ((2, 2, 2), (3, 3), ())
    >>> counts_of(ProbablePaths(3, 4, 9, most_levels=1))
    (2,)
    """
    counts, size = list[int](), 1
    most = paths.depth if paths.most_levels is None else paths.most_levels
    for level in range(min(paths.depth - 1, most)):
        count = min(paths.width, (paths.nodes - size) // (paths.depth - level))
        if count < 1:
            break
        counts.append(count)
        size += count
    return tuple(counts)
