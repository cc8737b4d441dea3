"""The few tokens of a row that top-k and top-p can keep, found without sorting or selecting among all of it.

Legend: V vocabulary, K tokens that may be kept, T tiles of N tokens each.
"""

from __future__ import annotations

from math import isnan

import torch

from spec_sdk.ops.pieces import largest, piece_count, pieces

TILE = 64


def top_k_candidates(logits_V: torch.Tensor, top_k: int) -> tuple[torch.Tensor, float]:
    """Ids [K], ascending, of the ``top_k`` largest logits and of all that tie with the last; and the largest logit.

    The k-th largest of the tiles' maxima is at most the k-th largest logit, so that only tiles whose maximum reaches it
    need be looked into. A largest logit that is not finite (NaN if there is one) tells an unusable row.
    """
    whole = logits_V.shape[0] // TILE
    id_C = torch.arange(whole * TILE, logits_V.shape[0], device=logits_V.device)
    if top_k < whole:
        tile_TN = logits_V[: whole * TILE].view(whole, TILE)
        most_T = torch.cat([part.amax(-1) for part in tile_TN.chunk(piece_count(logits_V))])
        most_K = most_T.topk(top_k).values
        if isnan(float(most_K[0])):
            return id_C, float("nan")
        start_K1 = (most_T >= most_K[-1]).nonzero() * TILE
        id_C = torch.cat(((start_K1 + torch.arange(TILE, device=logits_V.device)).view(-1), id_C))
    else:
        id_C = torch.arange(logits_V.shape[0], device=logits_V.device)
    value_C = logits_V[id_C]
    value_K = value_C.topk(top_k).values
    return id_C[value_C >= value_K[-1]], float(value_K[0])


def top_p_candidates(p_V: torch.Tensor, top_p: float) -> torch.Tensor:
    """Ids [K], ascending: the others, of less than (1 - top_p) / V each, sum to less than 1 - top_p and lie outside."""
    id_K = _ids_of_at_least(p_V, (1 - top_p) / p_V.shape[0])
    # all alike, and rounded down: then each of them is the likeliest
    return id_K if len(id_K) else _ids_of_at_least(p_V, largest(p_V))


def nucleus(p_K: torch.Tensor, top_p: float) -> torch.Tensor:
    """``p_K`` with zeros but for the fewest most probable whose sum reaches ``top_p``; of equals the first ones."""
    sorted_K, order_K = p_K.sort(descending=True, stable=True)
    before_K = sorted_K.cumsum(0, dtype=torch.float64) - sorted_K
    return torch.zeros_like(p_K).scatter_(0, order_K, sorted_K.masked_fill_(before_K >= top_p, 0.0))


def _ids_of_at_least(value_V: torch.Tensor, least: float) -> torch.Tensor:
    found, start = [], 0
    for (part,) in pieces(value_V):
        found.append((part >= least).nonzero()[:, 0].add_(start))
        start += part.shape[0]
    return torch.cat(found)
