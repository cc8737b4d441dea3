"""The operations of the CUDA backend: the reference ones, with attention and the rule ``multi_step`` in Triton.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

import dataclasses

import torch

from spec_sdk.contracts import Announce, SpeculativeAttention
from spec_sdk.ops import Decision, DrawnTree, Ops, Rows, Rule, Uniforms
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk_backends.fused_rejection import multi_step
from spec_sdk_backends.speculative_attention import finish, predict_part, speculative_attention
from spec_sdk_backends.tree_attention import tree_attention


class TritonOps(Ops):
    """Attention by interval mask, without a dense one; ``multi_step`` from logits, without a row of probabilities.

    Everything else as the reference does it.
    """

    def accept(self, rule: str | Rule, tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
        """``multi_step`` in three launches and one transfer where the sampler's rows can be made from logits.

        Elsewhere as the reference does.
        """
        if rule == "multi_step" and rows.from_logits is not None:
            return multi_step(tree, rows.from_logits, uniforms)
        return super().accept(rule, tree, rows, uniforms)

    def tree_attention(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask
    ) -> torch.Tensor:
        """Attention of N queries over ``S = mask.keys`` keys; softmax scale 1/sqrt(D). Returns o [B, N, H, D].

        A prompt's first pass (a causal chain without a prefix) stays with torch, whose kernels are made for it.
        Raises :class:`~spec_sdk.errors.UserError` for float64 and for head dims over 256.
        """
        if mask.is_chain and mask.prefix == 0 and mask.queries > 1:
            return super().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)
        if mask.is_preorder:
            return tree_attention(q_BNHD, k_BGSD, v_BGSD, mask.key_end_T, mask.prefix)
        return tree_attention(q_BNHD, k_BGSD, v_BGSD, mask.key_end_T, mask.prefix, mask.key_start_T, mask.query_start_N)

    def speculative_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        size: int,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """Attention, and its prediction from ``size`` keys at each end of the prefix; no statistics per chunk.

        A prompt's first pass stays with torch, as in :meth:`tree_attention`. Raises what that raises. For ``announce``
        the window has launches of its own, so that the prediction travels while the keys between are read.
        """
        if mask.is_chain and mask.prefix == 0 and mask.queries > 1:
            return super().speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, size, announce)
        starts = () if mask.is_preorder else (mask.key_start_T, mask.query_start_N)
        if announce is None:
            return speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask.key_end_T, mask.prefix, size, *starts)
        prediction = predict_part(q_BNHD, k_BGSD, v_BGSD, mask.key_end_T, mask.prefix, size, *starts)
        announced_BNHD = prediction.o_BNHD.to(q_BNHD.dtype)
        announce(announced_BNHD)
        attention = finish(prediction, q_BNHD, k_BGSD, v_BGSD, mask.prefix, size)
        return dataclasses.replace(attention, predicted_BNHD=announced_BNHD)
