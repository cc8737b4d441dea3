"""What predictors with a key budget share: how far it reaches, and attention over keys picked per KV head.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, K picked keys.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import PartialAttention, Predictor
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask


class BudgetedPredictor(Predictor):
    """Sees at most ``2 * config.size`` committed keys, as attention sink does; a shorter prefix it sees whole."""

    def always_exact(self, prefix: int) -> bool:
        return prefix <= 2 * int(self.config.size)


def attention_over_picked(
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    picked_BGK: torch.Tensor,
    recent: int,
    mask: AttentionMask,
    ops: Ops,
) -> PartialAttention:
    """Attention over the keys ``picked_BGK``, all from ``recent`` on, and a query's own tree ancestors.

    Only keys before ``recent`` may be picked, each at most once per KV head.
    """
    index_BGKD = picked_BGK[..., None].expand(-1, -1, -1, k_BGSD.shape[-1])
    k, v = (torch.cat((x.gather(2, index_BGKD), x[:, :, recent:]), dim=2) for x in (k_BGSD, v_BGSD))
    return ops.selected_attention(q_BNHD, k, v, mask)


def chunk_slots(chunk_BGC: torch.Tensor, size: int) -> torch.Tensor:
    """The cache slots [B, G, C * size] of chunks of ``size`` keys, in the order of the cache."""
    first_BGC1 = chunk_BGC.sort(-1).values[..., None] * size
    return (first_BGC1 + torch.arange(size, device=chunk_BGC.device)).flatten(-2)


def largest(value_BGC: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` places of the largest values, the first of equals: [B, G, count]."""
    return value_BGC.sort(dim=-1, descending=True, stable=True).indices[..., :count]
