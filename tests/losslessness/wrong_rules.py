"""Rules of acceptance that look right and are not. Every proof of losslessness must reject each of them.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.ops import Decision, DrawnTree, Left, Rows, Rule, Uniforms, accepts
from spec_sdk.ops.acceptance import multi_step
from spec_sdk.ops.block_acceptance import TINY, Block, accepted_length, blocks_of, mass_left, next_token
from spec_sdk.ops.inversion import draw
from spec_sdk.testing.tables import TableModel
from spec_sdk.tree import Draw, TokenTree
from spec_sdk_verifiers.multi_step import MultiStep

Redraw = Callable[[int, Draw], Draw]


def ruled(rule: Rule, base: type[Verifier] = MultiStep) -> Verifier:
    """A verifier as ``base``, by another rule."""
    verifier = base(None)
    verifier.rule = rule
    return verifier


def with_draws(tree: DrawnTree, change: Redraw) -> TokenTree:
    """``tree`` as it would be if its drafter had described its draws in another way."""
    assert isinstance(tree, TokenTree)
    draws_N = tuple(tuple(change(node, draw) for draw in draws) for node, draws in enumerate(tree.draws_N))
    return replace(tree, draws_N=draws_N)


class ModelQForChosen(MultiStep):
    """Accepts a top-k child with min(1, p/q), with the draft model's q, as if it had been drawn from it."""

    def __init__(self, table: TableModel) -> None:
        super().__init__(None)
        self.table = table

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        def as_if_drawn(node: int, draw: Draw) -> Draw:
            path = [tree.token_N[i] for i in tree.path_to(node)]
            logits_V = self.table.logits([*request.tokens[:-1], *path])
            return replace(
                draw, kind="with_replacement", sequence=None, q_V=request.sampler.probabilities(logits_V[None])[0]
            )

        verdict = super().verify_one(with_draws(tree, as_if_drawn), logits_NV, request)
        return replace(verdict, tree=tree)


class ChangedRows(Rows):
    """Another's rows, with another idea of what rejections leave."""

    def __init__(self, inner: Rows, left: type[Left]) -> None:
        super().__init__(inner.tree, inner.logits_NV, inner.greedy)
        self.inner = inner
        self.make_left = left

    def target(self, node: int) -> torch.Tensor:
        return self.inner.target(node)

    def draft(self, draw: Draw, node: int) -> torch.Tensor:
        return self.inner.draft(draw, node)

    def keep(self, row_V: torch.Tensor) -> torch.Tensor:
        return self.inner.keep(row_V)

    def choice_N(self) -> torch.Tensor:
        return self.inner.choice_N()

    def left(self, node: int) -> Left:
        return self.make_left(self, node)


def leaving(left: type[Left]) -> Rule:
    """``multi_step`` with another idea of what rejections leave."""
    return lambda tree, rows, uniforms: multi_step(tree, ChangedRows(rows, left), uniforms)


class TargetInsteadOfResidual(Left):
    """After a rejection goes on with p, not with what the rejected draw has left of it."""

    def reject(self, draw: Draw, last: bool) -> None:
        pass


class TooSureInTheDeep(Left):
    """Takes tokens behind the third of a path to be twice as probable as they are."""

    def p(self, token: int) -> float:
        return super().p(token) * (2 if len(self.rows.tree.path_to(self.node)) > 3 else 1)


class UnnormalisedResidual(Left):
    """Leaves the residual as max(p − q, 0), which sums to less than 1."""

    def reject(self, draw: Draw, last: bool) -> None:
        before_V = self.p_V.clone()
        super().reject(draw, last)
        if draw.source is not None and not last:
            rest_V = (before_V - self.rows.draft(draw, self.node)).clamp_min(0.0)
            self.p_V = rest_V if bool(rest_V.any()) else before_V


class UnnormalisedRest(Left):
    """Zeroes a rejected token, a chosen one in p or a drawn one in q, and forgets to renormalise."""

    def reject(self, draw: Draw, last: bool) -> None:
        token = self.rows.tree.token_N[draw.node]
        if draw.source is None:
            self.p_V[token] = 0.0
            return
        rest_V = self._draft(draw).clone()
        rest_V[token] = 0.0
        super().reject(draw, last)
        if draw.sequence is not None:
            self._undrawn[draw.sequence] = rest_V


def bonus_from_parent_row(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Takes the bonus token after a fully accepted path from the row before the right one."""
    path, token = multi_step(tree, rows, uniforms)
    if len(path) == 1 or tree.draws_N[path[-1]]:
        return path, token
    return path, draw(rows.target(path[-2]), uniforms(1)[0])


def draft_distribution_not_updated(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Treats draws without replacement as if q had not lost the tokens drawn before."""

    def independent(node: int, draw: Draw) -> Draw:
        return draw if draw.source is None else replace(draw, kind="with_replacement", sequence=None)

    return multi_step(with_draws(tree, independent), rows, uniforms)


def duplicates_forgotten(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Tries every child once, however often it was drawn."""
    assert isinstance(tree, TokenTree)
    once = tuple(tuple({draw.node: draw for draw in reversed(draws)}.values())[::-1] for draws in tree.draws_N)
    return multi_step(replace(tree, draws_N=once), rows, uniforms)


def children_best_first(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Tries the draws in the order of the target's preference instead of the order in which they were drawn."""
    assert isinstance(tree, TokenTree)

    def preference(node: int) -> Callable[[Draw], float]:
        return lambda draw: -float(rows.logits_NV[node, tree.token_N[draw.node]])

    best_first: Sequence[tuple[Draw, ...]] = [
        tuple(sorted(draws, key=preference(node))) for node, draws in enumerate(tree.draws_N)
    ]
    return multi_step(replace(tree, draws_N=tuple(best_first)), rows, uniforms)


def _verdict(blocks: Sequence[Block], length: int, then: Block, uniforms: Uniforms) -> Decision:
    return [block.node for block in blocks[: length + 1]], next_token(then, uniforms)


def block_target_for_residual(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Redraws from p after a rejection, instead of norm(max(w p − q, 0))."""
    blocks = blocks_of(tree, rows)
    length = accepted_length(blocks, uniforms)
    return _verdict(blocks, length, replace(blocks[length], q_V=None), uniforms)


def block_rest_of_token(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Goes on from max(p − q, 0), as if every token before had been accepted with certainty."""
    blocks = blocks_of(tree, rows)
    length = accepted_length(blocks, uniforms)
    return _verdict(blocks, length, replace(blocks[length], weight=1.0), uniforms)


def block_accepted_by_weight(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Accepts every block with its weight, as if it were the whole chain."""
    blocks = blocks_of(tree, rows)
    tried = range(len(blocks) - 1, 0, -1)
    length = next((i for i in tried if accepts(blocks[i].weight, 1.0, uniforms(1)[0])), 0)
    return _verdict(blocks, length, blocks[length], uniforms)


def block_stops_at_a_rejection(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Tries the shortest block first and ends with the first that is rejected, as chains of tokens do."""
    blocks = blocks_of(tree, rows)
    length = 0
    for block in blocks[1:]:
        left = block.weight if block.q_V is None else mass_left(block)
        bound = 1.0 if block.q_V is None else max(left + 1 - block.weight, TINY)
        if not accepts(left, bound, uniforms(1)[0]):
            break
        length += 1
    return _verdict(blocks, length, blocks[length], uniforms)
