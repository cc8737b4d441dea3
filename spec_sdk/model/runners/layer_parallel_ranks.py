"""Layer-parallel fuzzy execution over ranks (EasySpec, §3.1): the attention layers of a group are spread over devices.

Legend: B batch, N tokens, M model dim, G KV heads, D head dim, S ranks, L layers of a group that one rank computes,
X = M + 2GD where K and V travel too, else M.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner, attention_by_layer
from spec_sdk.ranks import Ranks


class RanksLayerParallelRunner(LayerParallelRunner):
    """Each rank computes the attention of its layers of a group; one all-gather per group; MLPs run on every rank.

    Layer number i of a group is rank i's (modulo the ranks), in every pass, so a fuzzy K and V are needed only by the
    rank that made them. ``shares_kv``: they are kept beyond the pass and travel with the attention outputs, so that
    plain passes find them on every rank. A group of one layer is computed by all.
    """

    def __init__(self, groups: Sequence[Sequence[int]], ranks: Ranks, shares_kv: bool) -> None:
        super().__init__(groups)
        self.ranks = ranks
        self.shares_kv = shares_kv

    def attention(
        self, decoder: Decoder, group: Sequence[int], h_BNM: torch.Tensor, work: ForwardPass
    ) -> Sequence[torch.Tensor]:
        if len(group) == 1:
            return attention_by_layer(decoder, group, h_BNM, work)
        size = self.ranks.size
        B, N, M = h_BNM.shape
        G, D = decoder.config.num_kv_heads, decoder.config.head_dim
        width = M + 2 * G * D if self.shares_kv else M
        mine_LBNX = h_BNM.new_zeros((-(-len(group) // size), B, N, width))
        for i, layer in enumerate(group[self.ranks.rank :: size]):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            mine_LBNX[i, ..., :M] = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            if self.shares_kv:
                mine_LBNX[i, ..., M:] = torch.cat((k_BNGD, v_BNGD), dim=2).flatten(2)
        all_SLBNX = self.ranks.all_gather(mine_LBNX)
        outputs = []
        for i, layer in enumerate(group):
            owner = i % size
            row_BNX = all_SLBNX[owner, i // size]
            outputs.append(row_BNX[..., :M])
            if self.shares_kv and owner != self.ranks.rank:
                kv_BNXD = row_BNX[..., M:].reshape(B, N, 2 * G, D)
                decoder.write_kv(layer, kv_BNXD[:, :, :G], kv_BNXD[:, :, G:], work)
        return outputs
