"""Block verification on a chain (Sun et al., "Block Verification Accelerates Speculative Decoding", ICLR 2025, Alg. 2).

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.tree import Draw, TokenTree
from spec_sdk_verifiers.greedy import follow_choices
from spec_sdk_verifiers.laws import draft_probability, require_chain, target_law

TINY = torch.finfo(torch.float64).tiny
Block = tuple[float, torch.Tensor, torch.Tensor]
"""Its weight, and the target's and the drafter's law [V] of the token after it."""


class BlockVerification(Verifier):
    """Accepts the longest block of a chain jointly: in expectation never fewer tokens than ``chain_rejection``.

    With x_i drawn from q_i, w_0 = 1 and w_i = min(w_{i-1} p_i(x_i) / q_i(x_i), 1), and s_i the mass of what is left,
    max(w_i p_{i+1} − q_{i+1}, 0): the whole chain of n tokens is accepted with w_n, a block of i < n tokens (the
    longest is tried first) with s_i / (s_i + 1 − w_i). The next token is then drawn from that rest, normalised,
    or from the target's law after the whole chain. A chosen token is drawn from a point mass.
    """

    name = "block_verification"
    guarantee = "distribution"
    exact_when_greedy = True
    chains_only = True

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """Raises ValueError, naming the node, for a node with more than one draw: that is no chain."""
        require_chain(tree, self.name)
        sampler, rng = request.sampler, request.rng
        if sampler.greedy:
            return follow_choices(tree, logits_NV, request)
        path, weight = [0], 1.0
        blocks: list[Block] = []
        while True:
            p_V = target_law(sampler, logits_NV, path[-1])
            draws = tree.draws_N[path[-1]]
            # a block of weight 0 cannot be accepted, nor can one that goes on from it
            if not draws or weight == 0:
                break
            q_V = _draft_law(tree, draws[0], p_V)
            blocks.append((weight, p_V, q_V))
            path.append(draws[0].node)
            ratio = float(p_V[tree.token_N[path[-1]]]) / draft_probability(q_V, tree, draws[0])
            weight = min(weight * ratio, 1.0)
        length = self._accepted(blocks, weight, request)
        if length < len(blocks):
            weight, p_V, q_V = blocks[length]
            p_V = self._rest(weight, p_V, q_V, request)
        return Verdict(path[: length + 1], sampler.draw(p_V, rng), tree)

    def _accepted(self, blocks: Sequence[Block], weight: float, request: Request) -> int:
        """The length of the accepted block. ``weight`` is that of the whole chain, ``blocks`` are the shorter ones."""
        sampler, rng = request.sampler, request.rng
        if sampler.accepts(weight, 1.0, rng):
            return len(blocks)
        # the empty block is what remains when no other is accepted
        for length in range(len(blocks) - 1, 0, -1):
            weight, p_V, q_V = blocks[length]
            left = self._left(weight, p_V, q_V)
            if sampler.accepts(left, max(left + 1 - weight, TINY), rng):
                return length
        return 0

    def _left(self, weight: float, p_V: torch.Tensor, q_V: torch.Tensor) -> float:
        return float((weight * p_V.double() - q_V.double()).clamp_min(0).sum())

    def _rest(self, weight: float, p_V: torch.Tensor, q_V: torch.Tensor, request: Request) -> torch.Tensor:
        return request.sampler.residual(weight * p_V, q_V)


def _draft_law(tree: TokenTree, draw: Draw, p_V: torch.Tensor) -> torch.Tensor:
    if draw.q_V is not None:
        return draw.q_V.to(p_V.device)
    q_V = torch.zeros_like(p_V)
    q_V[tree.token_N[draw.node]] = 1
    return q_V
