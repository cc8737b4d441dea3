"""What the verifiers share: the two laws that rejection sampling compares at a node, and the test for a chain.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import Sampler
from spec_sdk.errors import UnusableLogits
from spec_sdk.tree import Draw, TokenTree


def target_law(sampler: Sampler, logits_NV: torch.Tensor, node: int) -> torch.Tensor:
    """The target's distribution [V] after ``node``, on the CPU. Made per visited node: most of a tree never is.

    Raises UnusableLogits, whose row is the node, if the node's logits are not usable.
    """
    try:
        return sampler.probabilities(logits_NV[node : node + 1])[0].cpu()
    except UnusableLogits as error:
        raise UnusableLogits(node) from error
    except ValueError as error:
        raise ValueError(f"tree node {node}: {error}") from error


def draft_probability(q_V: torch.Tensor, tree: TokenTree, draw: Draw) -> float:
    """The probability with which ``draw`` gave its token. Raises ValueError if by ``q_V`` it could not have."""
    token = tree.token_N[draw.node]
    q = float(q_V[token])
    if not q > 0:
        raise ValueError(
            f"tree node {draw.node}: drafter {draw.drafter!r} says that it drew token {token} from a distribution "
            f"in which that token has probability {q}"
        )
    return q


def require_chain(tree: TokenTree, verifier: str) -> None:
    """Raise ValueError, naming the node, for a node with more than one draw: that is no chain."""
    for node, draws in enumerate(tree.draws_N):
        if len(draws) > 1:
            raise ValueError(
                f"tree node {node} has {len(draws)} draws; verifier {verifier!r} takes chains, multi_step takes trees"
            )
