"""Layer-parallel fuzzy execution over ranks (EasySpec, §3.1): the attention layers of a group are spread over devices.

Legend: B requests, N rows of a request, M model dim, G KV heads, D head dim, S ranks, L layers of a group that one rank
computes, X = M + 2GD where K and V travel too, else M.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.ranks import Ranks


def attention_over_ranks(
    decoder: Decoder, group: Sequence[int], h_BNM: torch.Tensor, work: ForwardPass, ranks: Ranks, shares_kv: bool
) -> Sequence[torch.Tensor]:
    """The attention outputs [B, N, M] of a group's blocks, all on ``h_BNM``, on every rank: one all-gather.

    Each rank computes its layers of the group. Layer number i of a group is rank i's (modulo the ranks), in every pass,
    so a fuzzy K and V are needed only by the rank that made them. ``shares_kv``: they are kept beyond the pass and
    travel with the attention outputs, so that plain passes find them on every rank.
    """
    size = ranks.size
    B, N, M = h_BNM.shape
    G, D = decoder.config.num_kv_heads, decoder.config.head_dim
    width = M + 2 * G * D if shares_kv else M
    mine_LBNX = h_BNM.new_zeros((-(-len(group) // size), B, N, width))
    for i, layer in enumerate(group[ranks.rank :: size]):
        q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
        decoder.write_kv(layer, k_BNGD, v_BNGD, work)
        mine_LBNX[i, ..., :M] = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
        if shares_kv:
            mine_LBNX[i, ..., M:] = torch.cat((k_BNGD, v_BNGD), dim=2).flatten(2)
    all_SLBNX = ranks.all_gather(mine_LBNX)
    outputs = []
    for i, layer in enumerate(group):
        owner = i % size
        row_BNX = all_SLBNX[owner, i // size]
        outputs.append(row_BNX[..., :M])
        if shares_kv and owner != ranks.rank:
            kv_BNXD = row_BNX[..., M:].reshape(B, N, 2 * G, D)
            decoder.write_kv(layer, kv_BNXD[:, :, :G], kv_BNXD[:, :, G:], work)
    return outputs
