"""Attention whose output has a gate (Qiu et al. 2025, arXiv:2505.06708): σ(g) ⊙ o, of a g that is computed with Q.

Legend: B requests, N rows of a request, M model dim, H query heads, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass, Rotations


class GatedAttention(Decoder):
    """Where the configuration has an ``attention_gate``, ``qkv`` of a block gives the gates below V.

    ``pre_attention`` and ``heads`` return them behind Q, [B, N, H, 2D].
    """

    def heads(self, layer: int, qkv: torch.Tensor, work: Rotations) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q_BNHD, k_BNGD, v_BNXD = super().heads(layer, qkv, work)
        if not self.config.attention_gate:
            return q_BNHD, k_BNGD, v_BNXD
        v_BNGD, gate_BNHD = v_BNXD.tensor_split((self.config.num_kv_heads,), 2)
        return torch.cat((q_BNHD, gate_BNHD), -1), k_BNGD, v_BNGD

    def attend(self, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        if not self.config.attention_gate:
            return super().attend(layer, q_BNHD, work)
        q_BNHD, gate_BNHD = q_BNHD.tensor_split(2, -1)
        return super().attend(layer, q_BNHD.contiguous(), work) * torch.sigmoid(gate_BNHD)
