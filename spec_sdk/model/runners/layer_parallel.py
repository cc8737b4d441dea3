"""Layer-parallel fuzzy execution (EasySpec, §3.1 and Alg. 2), fused on one device.

The attention sub-layers of a group share one input, so here they are one batched computation: fewer, larger operations
where drafting is bound by launches. The definition, layer by layer, is :func:`attention_by_layer`.

Legend: g layers of a group, B requests, N rows of a request, K = B*N rows, M model dim, H query heads, G KV heads, D
head dim, Y = H*D, S cache slots, C capacity of a slot, X heads of Q, K and V together (or their dims).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F

from spec_sdk.config.option import option
from spec_sdk.guarantees import Guarantee
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.layer_groups import EASYSPEC, resolve_groups, runs_of_kind
from spec_sdk.model.rope import rotate
from spec_sdk.model.runners.layer_parallel_ranks import attention_over_ranks
from spec_sdk.plugin import not_inherited
from spec_sdk.ranks import ALONE, Ranks

GroupAttention = Callable[[Decoder, Sequence[int], torch.Tensor, ForwardPass], Sequence[torch.Tensor]]
"""(decoder, group, h_BNM, pass) → the attention outputs [B, N, M] of the group's blocks, all on ``h_BNM``."""


@dataclass
class LayerParallelConfig:
    """Which layers run in parallel."""

    groups: Any = option(
        EASYSPEC,
        "easyspec, its Table 6 and the rule that continues it; or a list such as [[0], [1, 2, 3], [4]], which "
        "task=tune_layers finds",
    )
    size: int = option(
        4,
        "most layers in a group of easyspec, whose attention runs on one hidden state; first and last layer alone",
        minimum=1,
        means={1: "plain drafting"},
    )
    calibrate: bool = option(
        True, "bonus calibration (EasySpec, §3.2); false keeps the fuzzy K and V of accepted tokens, for the ablation"
    )


class LayerParallelRunner(BlockRunner):
    """Within a group of blocks, every attention sub-layer takes the hidden state that enters the group.

    Attention outputs and MLPs are then applied in the original order: h' = h + Attn_i(h_1), h = h' + MLP_i(h'). Each
    block keeps its own norm gains. A group of one block is the plain computation. Over several processes the layers of
    a group are spread over them.
    """

    name = "layer_parallel"
    Config = LayerParallelConfig
    config: LayerParallelConfig
    guarantee: Guarantee = "relaxed"
    spreads = True
    capturable = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        not_inherited(cls, "attention_groups", BlockRunner.attention_groups, ["attention_of"])

    def __init__(self, config: LayerParallelConfig, fused: bool = True) -> None:
        super().__init__(config)
        self.keeps_kv = not config.calibrate
        self.groups: list[list[int]] = []
        self.fused = fused
        self._ranks = ALONE

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], fused: bool = True) -> Self:
        """A runner of these groups. ``fused`` false computes a group's attention layer by layer."""
        runner = cls(LayerParallelConfig(groups=[list(group) for group in groups]), fused)
        runner.groups = [list(group) for group in groups]
        return runner

    def prepare(self, layers: int, ranks: Ranks = ALONE) -> None:
        self.groups = resolve_groups(self.config.groups, self.config.size, layers, "drafter")
        self._ranks = ranks

    def declaration(self) -> Mapping[str, Any]:
        """``groups``: the layers that run in parallel; calibration is the drafter's."""
        return {"name": self.name, "groups": self.groups}

    def attention_groups(self, layers: int) -> tuple[tuple[int, ...], ...] | None:
        return None if self._ranks.size > 1 else tuple(tuple(group) for group in self.groups)

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        for group in self.groups:
            attention = self.attention_of(group, decoder)
            for layer, a_BNM in zip(group, attention(decoder, group, h_BNM, work), strict=True):
                h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
                work.record(layer + 1, h_BNM)
        return h_BNM

    def attention_of(self, group: Sequence[int], decoder: Decoder) -> GroupAttention:
        """How the attention outputs of a group's blocks are computed."""
        # states are no rows to exchange, so that each rank has its own of all layers
        if len(group) > 1 and self._ranks.size > 1 and decoder.config.uncommon_blocks is None:
            # K and V that are kept are needed on every rank
            return functools.partial(attention_over_ranks, ranks=self._ranks, shares_kv=self.keeps_kv)
        fused = self.fused and decoder.stack is not None and decoder.fuses_groups
        return attention_fused if len(group) > 1 and fused else attention_by_layer


def attention_by_layer(
    decoder: Decoder, group: Sequence[int], h_BNM: torch.Tensor, work: ForwardPass
) -> Sequence[torch.Tensor]:
    """The attention outputs [B, N, M] of a group's blocks, all on ``h_BNM``: the first loop of Alg. 2 as it stands."""
    outputs = []
    for layer in group:
        q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
        decoder.write_kv(layer, k_BNGD, v_BNGD, work)
        outputs.append(decoder.project(layer, decoder.attend(layer, q_BNHD, work)))
    return outputs


def attention_fused(
    decoder: Decoder, group: Sequence[int], h_BNM: torch.Tensor, work: ForwardPass
) -> Sequence[torch.Tensor]:
    """The same, all layers of the group at once.

    One norm, one batched QKV product, one rotation, one write into the cache, one attention call over the caches of
    all its layers, one batched output projection. A group that skips layers of the model it was cut from
    takes one product for each run of consecutive ones. Layers of different kinds (windows, rotary positions) take a
    rotation, a write and an attention call for each run of one kind.
    """
    config, (B, N, M) = decoder.config, h_BNM.shape
    g, H, G, D = len(group), config.num_heads, config.num_kv_heads, config.head_dim
    first, end = group[0], group[0] + g
    stacks = decoder.stacks(first, end)

    x_BNM, gain_LM = h_BNM, stacks[0].input_norm_LM
    if gain_LM is not None:
        x_BNM = F.rms_norm(h_BNM.to(gain_LM.dtype), (M,), None, config.rms_norm_eps)
    x_KM = x_BNM.reshape(B * N, M)
    qkv_gKX = _joined([stack.qkv(x_KM, h_BNM.dtype) for stack in stacks])
    qkv_gBNXD = qkv_gKX.view(g, B, N, H + 2 * G, D)
    qk_gBNXD, v_gBNGD = qkv_gBNXD[..., : H + G, :], qkv_gBNXD[..., H + G :, :]
    if config.qk_norm:
        q_norm_gD = _joined([stack.q_norm_LD for stack in stacks])
        k_norm_gD = _joined([stack.k_norm_LD for stack in stacks])
        qk_gBNXD = F.rms_norm(qk_gBNXD.to(q_norm_gD.dtype), (D,), None, config.rms_norm_eps)
        qk_gBNXD[..., :H, :] *= q_norm_gD[:, None, None, None]
        qk_gBNXD[..., H:, :] *= k_norm_gD[:, None, None, None]
        qk_gBNXD = qk_gBNXD.to(h_BNM.dtype)

    attended = []
    for start, stop in runs_of_kind(decoder.kinds[first:end]):
        rotated_gBNXD = rotate(qk_gBNXD[start:stop], *decoder.rotation(first + start, work))
        work.cache.write(first + start, rotated_gBNXD[..., H:, :], v_gBNGD[start:stop])
        spec = decoder.kinds[first + start].attention
        attended.append(work.ops.cached_attention(rotated_gBNXD[..., :H, :], work.cache, first + start, spec))
    o_gKY = _joined(attended).reshape(g, B * N, H * D).to(h_BNM.dtype)
    outputs, row = [], 0
    for stack in stacks:
        outputs.append(stack.output(o_gKY[row : row + stack.depth]))
        row += stack.depth
    return _joined(outputs).view(g, B, N, M).unbind()


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The parts of a group's runs as one tensor; no copy if there is only one."""
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else torch.cat(present)
