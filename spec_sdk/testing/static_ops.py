"""Attention of a pass that reads no length on the host: every request over its whole slot, under a dense mask.

What a kernel does in place, in plain torch and on any device; it takes the capacity's time and memory, so it serves
checks and not runs.

Legend: g layers, B requests, N rows, H query heads, G KV heads, D head dim, S slots, C capacity, T tree slots.
"""

from __future__ import annotations

import torch

from spec_sdk.ops import Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.types import PLAIN, AttentionSpec


class StaticOps(Ops):
    """The reference operations, with :meth:`cached_attention` as one that a graph can capture."""

    def cached_attention(
        self, q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec = PLAIN
    ) -> torch.Tensor:
        """As the reference's, whatever the host knows of the lengths."""
        if not cache.in_place:
            return super().cached_attention(q_gBNHD, cache, first, spec)
        inputs, (g, _, N, H, D) = cache.inputs, q_gBNHD.shape
        slot_B = inputs.slot_B.long()
        k_gBHCD, v_gBHCD = (
            x_gSGCD.index_select(1, slot_B).repeat_interleave(H // x_gSGCD.shape[2], 2)
            for x_gSGCD in cache.layers(first, first + g)
        )
        score_gBHNC = (q_gBNHD.transpose(2, 3) @ k_gBHCD.mT).float() * spec.scale_for(D)
        if spec.softcap is not None:
            score_gBHNC = torch.tanh(score_gBHNC / spec.softcap) * spec.softcap
        hidden_BNC = visible_BNC(inputs, k_gBHCD.shape[3], spec.window).logical_not()
        score_gBHNC = score_gBHNC.masked_fill(hidden_BNC[:, None], float("-inf"))
        sinks_H = spec.sinks_H(slot_B.device)
        if sinks_H is not None:
            sink_gBHN1 = sinks_H[:, None, None].expand(*score_gBHNC.shape[:-1], 1)
            score_gBHNC = torch.cat((score_gBHNC, sink_gBHN1), -1)
        weight_gBHNC = score_gBHNC.softmax(-1)[..., : k_gBHCD.shape[3]].to(v_gBHCD.dtype)
        padding_BN = torch.arange(N, device=slot_B.device) >= inputs.live_B[:, None]
        return (weight_gBHNC @ v_gBHCD).transpose(2, 3).masked_fill(padding_BN[:, :, None, None], 0.0)


def visible_BNC(inputs: PassInputs, capacity: int, window: int | None = None) -> torch.Tensor:
    """Which cache columns each row sees, in layers with such a window."""
    T = inputs.slots
    column_C = torch.arange(capacity, device=inputs.slot_B.device)
    slot_BC = column_C - inputs.prefix_B[:, None]
    in_tree_BC = (slot_BC >= 0) & (slot_BC < T)
    index_BC = slot_BC.clamp(0, T - 1).long()
    start_B1C = inputs.key_start_BT.gather(1, index_BC)[:, None]
    end_B1C = inputs.key_end_BT.gather(1, index_BC)[:, None]
    query_BN1 = inputs.query_start_BN[:, :, None]
    of_tree_BNC = in_tree_BC[:, None] & (start_B1C <= query_BN1) & (query_BN1 < end_B1C)
    seen_BNC = of_tree_BNC | (slot_BC < 0)[:, None]
    if window is None:
        return seen_BNC
    position_BC = torch.where(in_tree_BC, inputs.key_position_BT.gather(1, index_BC), column_C)
    return seen_BNC & (inputs.position_BN[:, :, None] - position_BC[:, None] < window)
