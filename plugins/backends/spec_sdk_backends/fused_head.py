"""A draft head's block by the kernels of :mod:`spec_sdk_backends.fused_decoder`: what stands around its products is in
them, or in few launches.

Legend: B requests, N rows of a request, M model dim, I inputs of Q, K and V.
"""

from __future__ import annotations

import torch

from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.draft_heads.head import DraftHead, has_plain_block
from spec_sdk_backends.few_rows import FewRows
from spec_sdk_backends.fused_decoder import FusedDecoder, add_rms_norm, gated_mlp, in_cache, unknown_rest
from spec_sdk_backends.matrix_vector import matrix_vector


def fused_head_block(head: DraftHead) -> FusedHeadBlock | None:
    """None for a head with parts or stages that the kernels lack."""
    gains = [gain for gain in (head.blocks[0].q_norm_D, head.blocks[0].k_norm_D) if gain is not None]
    normed = len(gains) == 2 and all(gain.numel() == head.config.head_dim for gain in gains)
    known = has_plain_block(head) and unknown_rest(head) is None and (normed or not gains)
    return FusedHeadBlock(head) if known else None


class FusedHeadBlock:
    """Runs the block of ``head``, whose attention may read an embedding beside each hidden state."""

    def __init__(self, head: DraftHead) -> None:
        self._head, self._stages = head, FusedDecoder(head)

    def __call__(self, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor | None:
        """What leaves the block [B, N, M]; None, and nothing done, where derivatives are taken, or for a cache that
        attention cannot read in place.
        """
        if torch.is_grad_enabled() or not work.cache.in_place:
            return None
        x_BNI = self._head.attention_input(0, h_BNM, work)
        if h_BNM.shape[:2] == (1, 1) and self._stages.takes_one_row:
            h_BNM = self._of_one_row(x_BNI, h_BNM, work)
        elif self._stages.multiplies_few(h_BNM[..., 0].numel()):
            q_BNHD = self._stages.rotated_few(0, FewRows(x_BNI), work)
            h_BNM, _ = self._stages.rest_of_few_rows(0, self._stages.attend(0, q_BNHD, work), h_BNM, None)
        else:
            h_BNM = self._of_rows(x_BNI, h_BNM, work)
        work.record(1, h_BNM)
        return h_BNM

    def _of_one_row(self, x_11I: torch.Tensor, h_11M: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        stages = self._stages
        qkv_11X = matrix_vector(x_11I.contiguous(), self._head.blocks[0].qkv)
        q_11HD = stages.rotated(0, qkv_11X[None], work, in_cache(0, work))
        return stages.rest_of_one_row(0, stages.attend(0, q_11HD, work), h_11M.contiguous())

    def _of_rows(self, x_BNI: torch.Tensor, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        stages, w = self._stages, self._head.blocks[0]
        q_BNHD = stages.rotated(0, w.qkv(x_BNI)[None], work, in_cache(0, work))
        a_BNM = stages.project(0, stages.attend(0, q_BNHD, work))
        assert w.post_norm_M is not None
        h_BNM, x_BNM = add_rms_norm(h_BNM, a_BNM, w.post_norm_M, stages.config.rms_norm_eps)
        return h_BNM + gated_mlp(w.mlp, x_BNM)
