"""The rule ``multi_step`` by the kernels of :mod:`spec_sdk_backends.fused_rejection`: all requests' trees at once.

Legend: B trees, N nodes, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Sequence

import torch

from spec_sdk.errors import UnusableLogits
from spec_sdk.ops import Decision, FromLogits, PendingDecision, ScoredTree, UnscoredTree
from spec_sdk.ops.draws import DrawnTree
from spec_sdk.ops.rows import impossible
from spec_sdk_backends.fused_rejection import decide, first_reads, gather_trees


def multi_step(scored: Sequence[ScoredTree]) -> list[PendingDecision]:
    """The rule of that name (:func:`spec_sdk.ops.acceptance.multi_step`), for trees whose rows have ``from_logits``.

    Trees of the same sampling and kind of logits share their launches. A decision raises UnusableLogits, whose row is
    the tree node, and ValueError for a token that its distribution could not have given.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, tree in enumerate(scored):
        groups.setdefault(_kind(_given(tree)), []).append(i)
    pending: dict[int, PendingDecision] = {}
    for group in groups.values():
        pending.update(zip(group, _of_one_kind([scored[i] for i in group]), strict=True))
    return [pending[i] for i in range(len(scored))]


def _of_one_kind(scored: Sequence[ScoredTree]) -> list[PendingDecision]:
    numbers = [uniforms_of(tree) for tree in scored]
    try:
        return _launched(scored, numbers)
    except Exception:
        # some of them cannot be gathered: each for itself, with the random numbers that were taken
        return [
            PendingDecision.begun(functools.partial(_alone, tree, own))
            for tree, own in zip(scored, numbers, strict=True)
        ]


def _alone(scored: ScoredTree, uniform_D: torch.Tensor) -> PendingDecision:
    return _launched([scored], [uniform_D])[0]


def _launched(scored: Sequence[ScoredTree], uniform_BD: Sequence[torch.Tensor]) -> list[PendingDecision]:
    drawn, given = [tree.tree for tree in scored], [_given(tree) for tree in scored]
    logits_BNV = [one.logits_NV if one.logits_NV.stride(-1) == 1 else one.logits_NV.contiguous() for one in given]
    shaping, sigmoid = given[0].shaping, given[0].sigmoid
    trees = gather_trees(drawn, logits_BNV, uniform_BD, shaping, sigmoid=sigmoid is not None)
    verdict_B3 = decide(trees, shaping, sigmoid)
    first_node_B = list(itertools.accumulate((tree.size for tree in drawn), initial=0))
    numbering = Numbering(drawn, first_node_B, first_node_B[-1], trees.row_offset_R.shape[0])

    def pending(b: int) -> PendingDecision:
        return PendingDecision([verdict_B3], lambda host: numbering.decision(b, *host[0][b].tolist()))

    return [pending(b) for b in range(len(drawn))]


class Numbering:
    """How the kernels number nodes, rows and draws: through all trees of a launch.

    ``first_node``: of each tree. ``nodes``: rows of the target, padding included. ``rows``: those and the draft
    distributions'.
    """

    def __init__(self, trees: Sequence[DrawnTree], first_node: Sequence[int], nodes: int, rows: int) -> None:
        self._trees = trees
        self._nodes, self._rows = nodes, rows
        self._first_node = first_node
        self._first_draw = list(itertools.accumulate((tree.first_draw_N1[-1] for tree in trees), initial=0))

    def decision(self, b: int, node: int, token: int, fault: int) -> Decision:
        """That on tree ``b``. Raises what ``fault`` stands for, if it is not -1."""
        if fault >= 0:
            raise self._error(b, fault)
        return self._trees[b].path_to(node - self._first_node[b]), token

    def _error(self, b: int, fault: int) -> Exception:
        tree, nodes = self._trees[b], self._nodes
        if fault < nodes:
            return UnusableLogits(fault - self._first_node[b])
        if fault >= self._rows:
            draws = [draw for draws in tree.draws_N for draw in draws]
            return impossible(0.0, tree, draws[fault - self._rows - self._first_draw[b]])
        source, _ = first_reads(self._trees)[fault - nodes]
        return UnusableLogits(dict(first_reads([tree]))[source], "draft, ")


def _given(scored: ScoredTree) -> FromLogits:
    given = scored.rows.from_logits
    assert given is not None, "the kernels work on logits"
    return given


def _kind(given: FromLogits) -> Hashable:
    """What trees must have in common to be decided in one launch."""
    shaping, logits_NV = given.shaping, given.logits_NV
    sampling = (shaping.temperature, shaping.top_k, shaping.top_p, shaping.min_p, given.sigmoid)
    return (*sampling, logits_NV.dtype, logits_NV.device, logits_NV.shape[-1])


def uniforms_of(scored: ScoredTree | UnscoredTree) -> torch.Tensor:
    """One random number for each draw, then one for the next token, float64."""
    return torch.tensor(scored.uniforms(scored.tree.first_draw_N1[-1] + 1), dtype=torch.float64)
