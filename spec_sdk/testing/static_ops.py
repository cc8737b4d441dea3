"""Attention of a pass that reads no length on the host: every request over its whole slot, under a dense mask.

What a kernel does in place, in plain torch and on any device; it takes the capacity's time and memory, so it serves
checks and not runs.

Legend: g layers, X = g*B, B requests, N rows, H query heads, G KV heads, D head dim, S slots, C capacity, T tree slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from spec_sdk.ops import Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs


class StaticOps(Ops):
    """The reference operations, with :meth:`cached_attention` as one that a graph can capture."""

    def cached_attention(self, q_gBNHD: torch.Tensor, cache: PassCache, first: int) -> torch.Tensor:
        """As the reference's, whatever the host knows of the lengths."""
        inputs, g = cache.inputs, q_gBNHD.shape[0]
        k_gSGCD, v_gSGCD = cache.layers(first, first + g)
        slot_B = inputs.slot_B.long()
        o_XHND = F.scaled_dot_product_attention(
            q_gBNHD.transpose(2, 3).flatten(0, 1),
            k_gSGCD.index_select(1, slot_B).flatten(0, 1),
            v_gSGCD.index_select(1, slot_B).flatten(0, 1),
            attn_mask=visible_BNC(inputs, k_gSGCD.shape[3])[:, None].repeat(g, 1, 1, 1),
            enable_gqa=k_gSGCD.shape[2] < q_gBNHD.shape[3],
        )
        row_N = torch.arange(inputs.width, device=slot_B.device)
        padding_BN = row_N >= inputs.live_B[:, None]
        o_gBNHD: torch.Tensor = o_XHND.transpose(1, 2).reshape(q_gBNHD.shape)
        return o_gBNHD.masked_fill(padding_BN[:, :, None, None], 0.0)


def visible_BNC(inputs: PassInputs, capacity: int) -> torch.Tensor:
    """Which cache columns each row sees."""
    T = inputs.key_end_BT.shape[1]
    column_C = torch.arange(capacity, device=inputs.slot_B.device)
    slot_BC = column_C - inputs.prefix_B[:, None]
    in_tree_BC = (slot_BC >= 0) & (slot_BC < T)
    index_BC = slot_BC.clamp(0, T - 1).long()
    start_B1C = inputs.key_start_BT.gather(1, index_BC)[:, None]
    end_B1C = inputs.key_end_BT.gather(1, index_BC)[:, None]
    query_BN1 = inputs.query_start_BN[:, :, None]
    of_tree_BNC = in_tree_BC[:, None] & (start_B1C <= query_BN1) & (query_BN1 < end_B1C)
    return of_tree_BNC | (slot_BC < 0)[:, None]
