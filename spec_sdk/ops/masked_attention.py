"""Exact attention under a mask of intervals, in plain torch: the reference for every kernel.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys, T tree slots, Q = R*N;
n, t, s queries, slots and keys of one block.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.types import AttentionSpec

# Queries whose dense mask is made at once, in trees of at least two such blocks: memory grows with the nodes, not with
# their square
QUERY_BLOCK = 256
# Where a block sees a smaller share of the slots, its keys are copied together: between them lie the subtrees of others
MOST_SEEN_TO_GATHER = 0.75
# torch's CPU kernel takes 32 queries at a time, from 192 queries on more: a head's queries that fill whole tiles gain
# nothing from those of the heads beside it (measured by benchmarks/tree_attention.py)
CPU_TILE = 32
CPU_WIDE_TILES_FROM = 192
# with fewer float32 keys, moving the queries together costs more than reading K and V once saves
FOLD_FROM_KEYS = 128


def masked_attention(
    q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask, spec: AttentionSpec
) -> torch.Tensor:
    """Attention of N queries over ``S = mask.keys`` keys, [B, N, H, D]. A window is the mask's, not that of ``spec``.

    Where it fills the kernel's tiles better, heads that share a KV head are laid out as further queries of it.
    K and V are never repeated.
    """
    B, N, H, D = q_BNHD.shape
    G = k_BGSD.shape[1]
    R = H // G
    is_torchs = spec.softcap is None and spec.sinks is None
    if mask.is_causal and is_torchs:
        o_BHND = F.scaled_dot_product_attention(
            q_BNHD.transpose(1, 2), k_BGSD, v_BGSD, is_causal=True, scale=spec.scale, enable_gqa=R > 1
        )
        return o_BHND.transpose(1, 2)
    if N >= 2 * QUERY_BLOCK:
        return _by_blocks(q_BNHD, k_BGSD, v_BGSD, mask, spec)
    if not is_torchs:
        return _scored_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec)
    filled = N % CPU_TILE == 0 and R * N < CPU_WIDE_TILES_FROM
    if R == 1 or filled or (mask.keys < FOLD_FROM_KEYS and q_BNHD.dtype == torch.float32):
        bias_NS = None if N == 1 and mask.sees_everything else mask.bias_QS(q_BNHD.dtype, 1)
        q_BHND = q_BNHD.transpose(1, 2)
        o_BHND = F.scaled_dot_product_attention(
            q_BHND, k_BGSD, v_BGSD, attn_mask=bias_NS, scale=spec.scale, enable_gqa=R > 1
        )
        return o_BHND.transpose(1, 2)
    bias_QS = None if N == 1 and mask.sees_everything else mask.bias_QS(q_BNHD.dtype, R)
    q_BGQD = fold_heads(q_BNHD, G)
    o_BGQD = F.scaled_dot_product_attention(q_BGQD, k_BGSD, v_BGSD, attn_mask=bias_QS, scale=spec.scale)
    return o_BGQD.reshape(B, H, N, D).transpose(1, 2)


def _by_blocks(
    q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask, spec: AttentionSpec
) -> torch.Tensor:
    """Attention of one block of queries after the other, each over the keys that one of its queries sees."""
    o_BNHD = torch.empty_like(q_BNHD)
    for at in range(0, mask.queries, QUERY_BLOCK):
        block = slice(at, at + QUERY_BLOCK)
        query_n = mask.query_start_N[block]
        seen_T = (mask.key_start_T <= query_n.max()) & (mask.key_end_T > query_n.min())
        gone = 0
        if mask.window is not None:
            first_seen = mask.query_position_N[block].min() + 1 - mask.window
            seen_T &= mask.key_position_T >= first_seen
            gone = min(max(0, int(first_seen) - mask.first), mask.prefix)
        slot_t = seen_T.nonzero()[:, 0]
        slots = int(slot_t[-1]) + 1 if len(slot_t) else seen_T.shape[0]
        gathers = 0 < len(slot_t) < MOST_SEEN_TO_GATHER * slots
        kept: slice | torch.Tensor = slot_t if gathers else slice(slots)
        part = replace(
            mask.of_queries(block),
            prefix=mask.prefix - gone,
            key_start_T=mask.key_start_T[kept],
            key_end_T=mask.key_end_T[kept],
            key_position_T=mask.key_position_T[kept],
            first=mask.first + gone,
        )
        if gathers:
            key_s = torch.cat((torch.arange(gone, mask.prefix, device=slot_t.device), mask.prefix + slot_t))
            k_BGsD, v_BGsD = k_BGSD.index_select(2, key_s), v_BGSD.index_select(2, key_s)
        else:
            k_BGsD, v_BGsD = (x_BGSD[:, :, gone : mask.prefix + slots] for x_BGSD in (k_BGSD, v_BGSD))
        o_BNHD[:, block] = masked_attention(q_BNHD[:, block], k_BGsD, v_BGsD, part, spec)
    return o_BNHD


def _scored_attention(
    q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask, spec: AttentionSpec
) -> torch.Tensor:
    """Attention with soft-capped scores or sinks, which torch's kernels do not know; computed in float32 or wider."""
    B, N, H, D = q_BNHD.shape
    G = k_BGSD.shape[1]
    wide = torch.promote_types(q_BNHD.dtype, torch.float32)
    score_BGQS = fold_heads(q_BNHD, G).to(wide) @ k_BGSD.to(wide).mT
    score_BGQS.mul_(spec.scale_for(D))
    if spec.softcap is not None:
        score_BGQS.div_(spec.softcap).tanh_().mul_(spec.softcap)
    if not mask.sees_everything:
        score_BGQS += mask.bias_QS(wide, H // G)
    sinks_H = spec.sinks_H(q_BNHD.device)
    if sinks_H is None:
        weight_BGQS = torch.softmax(score_BGQS, -1)
    else:
        sink_GQ = sinks_H.to(wide).repeat_interleave(N).view(G, -1)
        weight_BGQS = score_BGQS.sub_(torch.logaddexp(score_BGQS.logsumexp(-1), sink_GQ)[..., None]).exp_()
    o_BGQD = weight_BGQS @ v_BGSD.to(wide)
    return o_BGQD.to(q_BNHD.dtype).reshape(B, H, N, D).transpose(1, 2)


def fold_heads(q_BNHD: torch.Tensor, G: int) -> torch.Tensor:
    """[B, N, H, D] → [B, G, R*N, D]: head h belongs to KV head h // R; its N queries are contiguous."""
    B, N, H, D = q_BNHD.shape
    return q_BNHD.transpose(1, 2).reshape(B, G, (H // G) * N, D)
