"""The operations of the CUDA backend: the reference ones, with attention, products with weights in few bits, choices of
tokens and the rule ``multi_step`` in Triton.

Legend: B batch or requests, N queries, H query heads, G KV heads, D head dim, S keys or cache slots, C capacity of a
slot, g layers of a group, X = g*B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from spec_sdk.contracts import Announce, SpeculativeAttention
from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.draft_heads.head import DraftHead
from spec_sdk.ops import (
    PLAIN,
    AttentionSpec,
    DecisionsInPass,
    Ends,
    LogitsToCome,
    Ops,
    PendingDecision,
    Rule,
    ScoredTree,
    UnscoredTree,
)
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.draws import Drawing
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk_backends import interleaved_trial, kept_tokens, top_tokens
from spec_sdk_backends.fused_decoder import MOST_DIMS, add_rms_norm
from spec_sdk_backends.fused_head import fused_head_block
from spec_sdk_backends.fused_multi_step import multi_step
from spec_sdk_backends.greedy_choice import greedy_choices
from spec_sdk_backends.interleaved_products import InterleavedProjection
from spec_sdk_backends.interleaved_weights import InterleavedWeights
from spec_sdk_backends.row_drawing import RowDrawing
from spec_sdk_backends.speculative_attention import finish, predict_part, speculative_attention
from spec_sdk_backends.tree_attention import (
    DTYPES,
    Tiling,
    VisibleBlocks,
    cached_tree_attention,
    takes_heads,
    tree_attention,
    visible_blocks,
)
from spec_sdk_backends.verdicts_in_pass import TablesInUse


class TritonOps(Ops):
    """Attention by interval mask, without a dense one; products with weights in few bits; ``multi_step`` from logits,
    without a row of probabilities; the most probable tokens of a row, those that filters keep and those that are drawn,
    and greedy choices of passes that make their verdicts.

    Everything else as the reference does it. ``shares_lists``: whether a pass's layers share one list of the key blocks
    that are visible; if not, every program looks for itself, as benchmarks compare. ``decides_in_pass``: whether
    ``multi_step`` is a part of captured passes where it can be. ``device``: the GPU that each pass makes the current
    one of its thread; None leaves that to the caller. ``fuses_heads``: whether small operations of draft heads are
    launches of the backend's own.
    """

    def __init__(
        self,
        shares_lists: bool = True,
        decides_in_pass: bool = False,
        device: torch.device | None = None,
        fuses_heads: bool = True,
    ) -> None:
        self.shares_lists = shares_lists
        self.fuses_heads = fuses_heads
        self._device = device
        self._tables = TablesInUse() if decides_in_pass else None

    def before_pass(self) -> None:
        # triton launches on the current device, whatever the tensors say; torch sets none that is current already
        if self._device is not None:
            torch.cuda.set_device(self._device)

    def quantized_projection(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> Projection:
        return InterleavedProjection(InterleavedWeights.of(matrix), bias_O)

    def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
        """Tried once on the ``device``, if there is one."""
        return self._device is not None and interleaved_trial.gains(bits, dtype, self._device)

    def accept(self, rule: str | Rule, scored: Sequence[ScoredTree]) -> list[PendingDecision]:
        """``multi_step`` in two launches for all trees of the same sampling, where the sampler's rows can be made
        from logits; three integers a tree are read.

        Elsewhere as the reference does.
        """
        fused = [i for i, one in enumerate(scored) if rule == "multi_step" and one.rows.from_logits is not None]
        decisions = dict(zip(fused, multi_step([scored[i] for i in fused]), strict=True))
        others = [i for i in range(len(scored)) if i not in decisions]
        decisions |= zip(others, super().accept(rule, [scored[i] for i in others]), strict=True)
        return [decisions[i] for i in range(len(scored))]

    def head_block(self, head: DraftHead) -> Callable[[torch.Tensor, ForwardPass], torch.Tensor | None] | None:
        """What stands around the block's products in them, or in few launches."""
        return fused_head_block(head) if self.fuses_heads else None

    def rms_norm(self, x: torch.Tensor, gain_M: torch.Tensor, epsilon: float) -> torch.Tensor:
        """As the reference's, in float32 and one launch."""
        known = x.dtype in DTYPES and gain_M.dtype in DTYPES and x.shape[-1:] == gain_M.shape
        if not (known and self.fuses_heads) or len(gain_M) > MOST_DIMS or torch.is_grad_enabled():
            return super().rms_norm(x, gain_M, epsilon)
        return add_rms_norm(x, None, gain_M, epsilon)[1]

    def top_log_probabilities(self, logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As the reference's, in two launches for up to 16 tokens; of equal logits that of the lowest place first."""
        if top_tokens.takes(logits_NV, count):
            return top_tokens.top_log_probabilities(logits_NV, count)
        return super().top_log_probabilities(logits_NV, count)

    def least_kept(self, logits_RV: torch.Tensor, shaping_B4: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As the reference's, in one launch and without sorting."""
        if logits_RV.dtype in DTYPES and logits_RV.numel() > 0:
            return kept_tokens.least_kept(logits_RV, shaping_B4)
        return super().least_kept(logits_RV, shaping_B4)

    def drawing(self, logits: torch.Tensor | SomeLogits, shaping: Shaping) -> Drawing | None:
        """From a row on the device, at the price of one read a draw; host memory is left to torch."""
        given = logits.logits_R if isinstance(logits, SomeLogits) else logits
        if given.dtype not in DTYPES or (torch.cuda.is_available() and not given.is_cuda):
            return None
        return RowDrawing(logits.full_V if isinstance(logits, SomeLogits) else logits, shaping)

    def accept_in_pass(
        self, rule: str | Rule, unscored: Sequence[UnscoredTree], logits: LogitsToCome
    ) -> DecisionsInPass | None:
        """``greedy`` as the reference does, the choices by kernels; ``multi_step`` from tables
        (:class:`TablesInUse`).
        """
        if rule == "multi_step" and self._tables is not None:
            return self._tables.multi_step(unscored, logits)
        decisions = super().accept_in_pass(rule, unscored, logits)
        return decisions and dataclasses.replace(decisions, epilogue=greedy_choices)

    def cached_attention(
        self, q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec = PLAIN
    ) -> torch.Tensor:
        """As the reference's, in one launch for all requests and layers, and without waiting for the device.

        Prompts' first chunks stay with torch, whose kernels are made for them, unless scores are capped, there are
        sinks, or a window reaches less far; so do heads that are too large for the kernel. Raises
        :class:`~spec_sdk.errors.UserError` for float64.
        """
        if not cache.in_place:
            return super().cached_attention(q_gBNHD, cache, first, spec)
        g, B, N, H, _ = q_gBNHD.shape
        inputs = cache.inputs
        k_gSGCD, v_gSGCD = cache.layers(first, first + g)
        if q_gBNHD.dtype in DTYPES and not takes_heads(q_gBNHD, k_gSGCD, v_gSGCD):
            return super().cached_attention(q_gBNHD, cache, first, spec)
        if not inputs.first_chunk or not _is_torchs(spec, N):
            visible = self._visible(q_gBNHD, cache, k_gSGCD.shape[2])
            return cached_tree_attention(q_gBNHD, k_gSGCD, v_gSGCD, inputs, spec=spec, visible=visible)
        slot_B = inputs.slot_B.long()
        padding_BN = torch.arange(N, device=slot_B.device) >= inputs.live_B[:, None]
        # a masked column that an earlier request left as NaN would still spoil the sum
        k_gBGND, v_gBGND = (
            cached[:, :, :, :N].index_select(1, slot_B).masked_fill_(padding_BN[:, None, : cached.shape[3], None], 0.0)
            for cached in (k_gSGCD, v_gSGCD)
        )
        o_XHND = F.scaled_dot_product_attention(
            q_gBNHD.flatten(0, 1).transpose(1, 2),
            k_gBGND.flatten(0, 1),
            v_gBGND.flatten(0, 1),
            is_causal=True,
            scale=spec.scale,
            enable_gqa=k_gSGCD.shape[2] < H,
        )
        return o_XHND.transpose(1, 2).view(g, B, N, H, -1).masked_fill(padding_BN[:, :, None, None], 0.0)

    def _visible(self, q_gBNHD: torch.Tensor, cache: PassCache, kv_heads: int) -> VisibleBlocks | None:
        """The pass's list of visible blocks, which its first layer makes; None where there is one block at most."""
        N, H, D = q_gBNHD.shape[2:]
        if not self.shares_lists or not q_gBNHD.numel() or q_gBNHD.dtype not in DTYPES:
            return None
        R = H // kv_heads
        tiling = Tiling.choose(N * R, D, q_gBNHD.dtype)
        if cache.inputs.slots <= tiling.keys:
            return None
        key = VisibleBlocks, tiling, R
        if key not in cache.made:
            cache.made[key] = visible_blocks(cache.inputs, tiling, R)
        found: VisibleBlocks = cache.made[key]
        return found

    def tree_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        spec: AttentionSpec = PLAIN,
    ) -> torch.Tensor:
        """Attention of N queries over ``S = mask.keys`` keys, as ``spec`` says. Returns o [B, N, H, D].

        A prompt's first pass (a causal chain without a prefix) and heads that are too large stay with torch, as in
        :meth:`cached_attention`. Raises :class:`~spec_sdk.errors.UserError` for float64.
        """
        too_large = q_BNHD.dtype in DTYPES and not takes_heads(q_BNHD, k_BGSD, v_BGSD)
        if too_large or (mask.is_causal and _is_torchs(spec, mask.queries)):
            return super().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec)
        key_start_T, query_start_N = (None, None) if mask.is_preorder else (mask.key_start_T, mask.query_start_N)
        positions = mask.key_position_T, mask.query_position_N
        return tree_attention(
            q_BNHD,
            k_BGSD,
            v_BGSD,
            mask.key_end_T,
            mask.prefix,
            key_start_T,
            query_start_N,
            spec=spec,
            positions=positions,
        )

    def speculative_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ends: int | Ends,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """Attention, and its prediction from both ends of the prefix; no statistics per chunk.

        A prompt's first pass stays with torch, as in :meth:`tree_attention`. Raises what that raises. For ``announce``
        the window has launches of its own, so that the prediction travels while the keys between are read.
        """
        if mask.is_causal:
            return super().speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, ends, announce)
        starts = () if mask.is_preorder else (mask.key_start_T, mask.query_start_N)
        if announce is None:
            return speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask.key_end_T, mask.prefix, ends, *starts)
        prediction = predict_part(q_BNHD, k_BGSD, v_BGSD, mask.key_end_T, mask.prefix, ends, *starts)
        announced_BNHD = prediction.o_BNHD.to(q_BNHD.dtype)
        announce(announced_BNHD)
        attention = finish(prediction, q_BNHD, k_BGSD, v_BGSD, mask.prefix, ends)
        return dataclasses.replace(attention, predicted_BNHD=announced_BNHD)


def _is_torchs(spec: AttentionSpec, rows: int) -> bool:
    """Whether torch's causal kernel computes the attention of so many first tokens."""
    return spec.softcap is None and spec.sinks is None and (spec.window is None or rows <= spec.window)
