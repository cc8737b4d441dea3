"""Block verification on a chain (Sun et al., "Block Verification Accelerates Speculative Decoding", ICLR 2025, Alg. 2).

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.draws import DrawnTree
from spec_sdk.ops.inversion import draw, first_beyond
from spec_sdk.ops.residual import accepts
from spec_sdk.ops.rows import Decision, Rows, Uniforms, not_a_number, possible

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Block:
    """The tokens up to ``node``: their weight w, and the distributions [V] of the token after them.

    ``q_V`` is None for the last block, after which no token was drafted, or none can be accepted.
    """

    node: int
    weight: float
    p_V: torch.Tensor
    q_V: torch.Tensor | None


def block(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Accepts the longest block of a chain jointly: in expectation never fewer tokens than ``multi_step``. Lossless.

    With x_i drawn from q_i, w_0 = 1 and w_i = min(w_{i-1} p_i(x_i) / q_i(x_i), 1), and s_i the mass of what is left,
    max(w_i p_{i+1} − q_{i+1}, 0): the whole chain of n tokens is accepted with w_n, a block of i < n tokens (the
    longest is tried first) with s_i / (s_i + 1 − w_i). The next token is then drawn from that rest, normalised,
    or from the target's distribution after the whole chain. A chosen token is drawn from a point mass.

    Takes one random number for each block that is tried and one for the next token. Raises ValueError, naming the node,
    for a node with more than one draw, and as ``multi_step`` does.
    """
    require_chain(tree, "rule 'block'")
    blocks = blocks_of(tree, rows)
    length = accepted_length(blocks, uniforms)
    token = next_token(blocks[length], uniforms)
    if token < 0:
        raise _no_mass(blocks[length], tree)
    return [block.node for block in blocks[: length + 1]], token


def blocks_of(tree: DrawnTree, rows: Rows) -> list[Block]:
    """The blocks of 0, 1 … tokens; the last one is the whole chain, or one of weight 0."""
    blocks: list[Block] = []
    node, weight = 0, 1.0
    while True:
        p_V = rows.keep(rows.target(node))
        draws = tree.draws_N[node]
        # a block of weight 0 cannot be accepted, nor can one that goes on from it
        if not draws or weight == 0:
            return [*blocks, Block(node, weight, p_V, None)]
        drawn = draws[0]
        token = tree.token_N[drawn.node]
        q_V = torch.zeros_like(p_V) if drawn.source is None else rows.keep(rows.draft(drawn, node))
        if drawn.source is None:
            q_V[token] = 1.0
        blocks.append(Block(node, weight, p_V, q_V))
        known = rows.known(drawn)
        q = possible(float(q_V[token]) if known is None else known, tree, drawn)
        weight = min(weight * (float(p_V[token]) / q), 1.0)
        node = drawn.node


def accepted_length(blocks: Sequence[Block], uniforms: Uniforms) -> int:
    """How many tokens the accepted block has."""
    if accepts(blocks[-1].weight, 1.0, uniforms(1)[0]):
        return len(blocks) - 1
    # the empty block is what remains when no other is accepted
    for length in range(len(blocks) - 2, 0, -1):
        left = mass_left(blocks[length])
        if accepts(left, max(left + 1 - blocks[length].weight, TINY), uniforms(1)[0]):
            return length
    return 0


def mass_left(block: Block) -> float:
    """The mass of max(w p − q, 0)."""
    assert block.q_V is not None
    return float((block.weight * block.p_V.double() - block.q_V.double()).clamp_min(0).sum())


def next_token(block: Block, uniforms: Uniforms) -> int:
    """The token after the accepted block: from max(w p − q, 0), or from p after the whole chain."""
    if block.q_V is None:
        return draw(block.p_V, uniforms(1)[0])
    return first_beyond(block.weight * block.p_V, uniforms(1)[0], block.q_V)


def _no_mass(block: Block, tree: DrawnTree) -> Exception:
    """Why no token can be drawn behind a block."""
    if block.q_V is not None and block.q_V.isnan().any():
        return not_a_number(tree, tree.draws_N[block.node][0])
    return UnusableLogits(block.node)


def require_chain(tree: DrawnTree, who: str) -> None:
    """Raise ValueError, naming the node, for a node with more than one draw: that is no chain."""
    for node, draws in enumerate(tree.draws_N):
        if len(draws) > 1:
            raise ValueError(f"tree node {node} has {len(draws)} draws; {who} takes chains, multi_step takes trees")
