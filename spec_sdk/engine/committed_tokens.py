"""From a tree's logits to the tokens that a request goes on with: what the host does around a verdict.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from spec_sdk.contracts.request import Request, Verdict
from spec_sdk.tree import TokenTree


def penalised(logits_NV: torch.Tensor, tree: TokenTree, request: Request) -> torch.Tensor:
    """The target's logits of a tree with penalty and constraint, one path per node. ``logits_NV`` may be written to."""
    if not request.changes_logits:
        return logits_NV
    paths: list[list[int]] = [[]]
    for node in range(1, tree.size):
        paths.append([*paths[tree.parent_N[node]], tree.token_N[node]])
    return request.process_logits(logits_NV, paths)


def followed(verdict: Verdict, unfollowed: Collection[tuple[int, ...]]) -> Verdict:
    """The verdict as far as a constraint tells what may follow: ``unfollowed`` are paths behind which it does not. The
    token that leads to one is the last, and the next step says why it goes no further.
    """
    tokens = verdict.tokens[:-1] if unfollowed else []
    for count in range(1, len(tokens) + 1):
        if tuple(tokens[:count]) in unfollowed:
            return Verdict(verdict.path[:count], tokens[count - 1], verdict.tree)
    return verdict


def clip(verdict: Verdict, request: Request) -> list[int]:
    """The verdict's tokens up to the first stop token (which is kept) and the request's remaining length."""
    tokens = verdict.tokens[: request.max_new_tokens - request.new_tokens]
    for i, token in enumerate(tokens):
        if token in request.stop_ids:
            return tokens[: i + 1]
    return tokens
