"""From a checkpoint's weights, by their roles, to what recurrent layers and the attention beside them are made of.

Legend: H heads, D head dim, M model dim, C channels of a convolution, K tokens that it sees, Y outputs of a mixer.
"""

from __future__ import annotations

import torch

from spec_sdk.model.config import GatedDeltaNets, ModelConfig, StateSpaces
from spec_sdk.model.recurrent.layers import CausalConvolution, GatedDeltaNet, RecurrentMixer, ShortConvolution
from spec_sdk.model.recurrent.state_space import StateSpace
from spec_sdk.model.rotary_rows import as_rotated, matrix_as_rotated
from spec_sdk.model.weights_by_role import WeightsByRole
from spec_sdk.ops.linear import JoinedProjection, Projection
from spec_sdk.ops.quantized import QuantizedMatrix


def recurrent_parts(
    config: ModelConfig, weights: WeightsByRole, layer: int
) -> tuple[Projection, RecurrentMixer, Projection]:
    """Input projection, mixer and output projection of a recurrent layer."""
    recurrent = config.recurrent
    mixer: RecurrentMixer
    if isinstance(recurrent, StateSpaces):
        mixer = weights.ops.recurrent_mixer(_state_space(config, recurrent, weights, layer))
        return weights.projection(layer, "space_input"), mixer, weights.projection(layer, "space_output")
    if not isinstance(recurrent, GatedDeltaNets):
        mixer = ShortConvolution(CausalConvolution(weights.read("short_convolution", layer)[:, 0]))
        mixer = weights.ops.recurrent_mixer(mixer)
        return weights.projection(layer, "short_input"), mixer, weights.projection(layer, "short_output")
    wide = torch.promote_types(weights.dtype, torch.float32)
    # how a state decays hangs on these, so that they are never in few bits
    gains = weights.ops.projection(weights.fused(layer, "delta_gain", "delta_step"))
    mixer = GatedDeltaNet(
        CausalConvolution(weights.read("delta_convolution", layer, wide)[:, 0]),
        recurrent.key_heads,
        recurrent.key_dim,
        decay_H=-weights.read("delta_decay", layer, wide).exp(),
        bias_H=weights.read("delta_bias", layer, wide),
        norm_V=weights.read("delta_norm", layer, wide),
        epsilon=config.rms_norm_eps,
        tiled=recurrent.tiled,
    )
    roles = [role for role in ("delta_qkv", "delta_q", "delta_k", "delta_v", "delta_gate") if weights.has(role, layer)]
    large = [roles]
    if weights.quantized(tuple(roles), layer) is None and any(weights.quantized((role,), layer) for role in roles):
        # a file may have the gate in another form
        large = [roles[:-1], roles[-1:]]
    parts = [weights.projection(layer, *of) for of in large]
    mixer = weights.ops.recurrent_mixer(mixer)
    return JoinedProjection([*parts, gains]), mixer, weights.projection(layer, "delta_output")


def _state_space(config: ModelConfig, recurrent: StateSpaces, weights: WeightsByRole, layer: int) -> RecurrentMixer:
    wide, scales = torch.promote_types(weights.dtype, torch.float32), recurrent.scales
    bias_C = weights.read("space_convolution_bias", layer, wide) if recurrent.convolution_bias else None
    weight_CK = weights.read("space_convolution", layer, wide)[:, 0]
    keys = recurrent.groups * recurrent.state_dim
    parts = torch.split(weight_CK, [recurrent.inner, keys, keys])
    # each channel's numbers are multiplied by one scale before, which is the same
    weight_CK = torch.cat([part * scale for part, scale in zip(parts, (scales.x, scales.b, scales.c), strict=True)])
    skip_H = weights.read("space_skip", layer, wide)
    gain_Y = weights.read("space_norm", layer).to(wide) if recurrent.normed else skip_H.new_ones(recurrent.inner)
    return StateSpace(
        CausalConvolution(weight_CK, bias_C),
        recurrent.groups,
        recurrent.state_dim,
        decay_H=-weights.read("space_decay", layer, wide).exp(),
        bias_H=weights.read("space_bias", layer, wide),
        skip_H=skip_H,
        gain_Y=gain_Y * scales.output,
        epsilon=config.norm_eps_of_states,
        step_limit=recurrent.step_limit,
        normed=recurrent.normed,
        gate_scale=scales.gate,
        step_scale=scales.step,
    )


def gated_qkv(config: ModelConfig, weights: WeightsByRole, layer: int) -> Projection:
    """Q, K, V and the gates of what attention gives, one below the other. The checkpoint has a head's gate right behind
    its Q.
    """
    H, D = config.num_heads, config.head_dim
    row_2HD = torch.arange(2 * H * D).view(H, 2, D).transpose(0, 1).flatten(1)
    parts = [weights.quantized((role,), layer) for role in ("gated_q", "k", "v")]
    if all(part is not None for part in parts):
        gated, k, v = [part for part in parts if part is not None]
        q, gate = (gated.rows(row.to(gated.device)) for row in row_2HD)
        whole = QuantizedMatrix.below([matrix_as_rotated("q", q, config), k, v, gate])
        if whole is not None:
            return weights.ops.quantized_projection(whole)
    gated_XM = weights.read("gated_q", layer)
    q_XM, gate_XM = (gated_XM[row] for row in row_2HD.to(gated_XM.device))
    k_XM, v_XM = (weights.fused(layer, role) for role in ("k", "v"))
    return weights.ops.projection(torch.cat((as_rotated("q", q_XM, config), k_XM, v_XM, gate_XM)))
