"""Rules of acceptance that look right and are not. Every proof of losslessness must reject each of them.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from spec_sdk.contracts import Request, Verdict
from spec_sdk.testing.tables import TableModel
from spec_sdk.tree import Draw, TokenTree
from spec_sdk_verifiers.block_verification import Block, BlockVerification
from spec_sdk_verifiers.laws import target_law
from spec_sdk_verifiers.multi_step import MultiStep

Redraw = Callable[[int, Draw], Draw]


def with_draws(tree: TokenTree, change: Redraw) -> TokenTree:
    """``tree`` as it would be if its drafter had described its draws in another way."""
    draws_N = tuple(tuple(change(node, draw) for draw in draws) for node, draws in enumerate(tree.draws_N))
    return replace(tree, draws_N=draws_N)


class ModelQForChosen(MultiStep):
    """Accepts a top-k child with min(1, p/q), with the draft model's q, as if it had been drawn from it."""

    def __init__(self, table: TableModel) -> None:
        super().__init__(None)
        self.table = table

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        def as_if_drawn(node: int, draw: Draw) -> Draw:
            path = [tree.token_N[i] for i in tree.path_to(node)]
            logits_V = self.table.logits([*request.tokens[:-1], *path])
            return replace(
                draw, kind="with_replacement", sequence=None, q_V=request.sampler.probabilities(logits_V[None])[0]
            )

        verdict = super().verify(with_draws(tree, as_if_drawn), logits_NV, request)
        return replace(verdict, tree=tree)


class TargetInsteadOfResidual(MultiStep):
    """After a rejection goes on with p, not with what the rejected draw has left of it."""

    def _try_children(
        self, tree: TokenTree, node: int, p_V: torch.Tensor, request: Request, uniforms: Sequence[float]
    ) -> tuple[int | None, torch.Tensor]:
        child, _ = super()._try_children(tree, node, p_V, request, uniforms)
        return child, p_V


class BonusFromParentRow(MultiStep):
    """Takes the bonus token after a fully accepted path from the row before the right one."""

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = super().verify(tree, logits_NV, request)
        leaf = verdict.path[-1]
        if leaf == 0 or tree.draws_N[leaf]:
            return verdict
        p_V = target_law(request.sampler, logits_NV, tree.parent_N[leaf])
        return replace(verdict, next_token=request.sampler.draw(p_V, request.rng))


class DraftDistributionNotUpdated(MultiStep):
    """Treats draws without replacement as if q had not lost the tokens drawn before."""

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        def independent(node: int, draw: Draw) -> Draw:
            return draw if draw.q_V is None else replace(draw, kind="with_replacement", sequence=None)

        return super().verify(with_draws(tree, independent), logits_NV, request)


class DuplicatesForgotten(MultiStep):
    """Tries every child once, however often it was drawn."""

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        once = tuple(tuple({draw.node: draw for draw in reversed(draws)}.values())[::-1] for draws in tree.draws_N)
        return super().verify(replace(tree, draws_N=once), logits_NV, request)


class ChildrenBestFirst(MultiStep):
    """Tries the draws in the order of the target's preference instead of the order in which they were drawn."""

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        def preference(node: int) -> Callable[[Draw], float]:
            return lambda draw: -float(logits_NV[node, tree.token_N[draw.node]])

        best_first: Sequence[tuple[Draw, ...]] = [
            tuple(sorted(draws, key=preference(node))) for node, draws in enumerate(tree.draws_N)
        ]
        return super().verify(replace(tree, draws_N=tuple(best_first)), logits_NV, request)


class BlockRestOfToken(BlockVerification):
    """Goes on from max(p − q, 0), as if every token before had been accepted with certainty."""

    def _rest(self, weight: float, p_V: torch.Tensor, q_V: torch.Tensor, request: Request) -> torch.Tensor:
        return super()._rest(1.0, p_V, q_V, request)


class BlockAcceptedByWeight(BlockVerification):
    """Accepts every block with its weight, as if it were the whole chain."""

    def _left(self, weight: float, p_V: torch.Tensor, q_V: torch.Tensor) -> float:
        # x / (x + 1 − weight) is the weight where x is
        return weight


class BlockStopsAtARejection(BlockVerification):
    """Tries the shortest block first and ends with the first that is rejected, as chains of tokens do."""

    def _accepted(self, blocks: Sequence[Block], weight: float, request: Request) -> int:
        for length in range(1, len(blocks)):
            if super()._accepted(blocks[: length + 1], 0.0, request) < length:
                return length - 1
        return len(blocks) if request.sampler.accepts(weight, 1.0, request.rng) else len(blocks) - 1


class TargetForResidual:
    """A sampler's mixin. Redraws from p after a rejection, instead of norm(max(p − q, 0))."""

    def residual(self, p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
        return p_V


class UnnormalisedResidual:
    """A sampler's mixin. Leaves the residual as max(p − q, 0), which sums to less than 1."""

    def residual(self, p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
        rest_V = (p_V - q_V).clamp_min(0.0)
        return rest_V if bool(rest_V.any()) else p_V


class UnnormalisedRest:
    """A sampler's mixin. Zeroes a rejected token, a chosen one in p or a drawn one in q, and forgets to renormalise."""

    def without(self, p_V: torch.Tensor, token: int) -> torch.Tensor:
        rest_V = p_V.clone()
        rest_V[token] = 0.0
        return rest_V
