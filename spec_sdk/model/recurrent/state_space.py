"""Mamba-2's layers (Dao & Gu 2024, arXiv:2405.21060), between their input and output projections.

Their recurrence is the gated delta rule's without its correction: ``S_t = a_t S_s + d_t x_t b_tᵀ``, ``y_t = S_t c_t``,
with steps d and ``a = e^(d A)``.

Legend: N rows, K tokens that a convolution sees, C channels of it, G groups, H heads (H/G neighbours share a group's b
and c), D state dim, V head dim, X outputs of the input projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.recurrent.layers import CausalConvolution, RecurrentMixer
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import RecurrentState, state_with_memory
from spec_sdk.ops import Ops
from spec_sdk.ops.gated_delta import gated_delta


@dataclass(frozen=True)
class StateSpace(RecurrentMixer):
    """Of an input projection to an output gate z, to x, b and c under the convolution, and steps.

    ``decay_H`` is A = −e^log A, ``bias_H`` that of steps, ``skip_H`` what a row's own x is added times, ``gain_Y`` what
    the layer gives is multiplied by, behind a norm of each group's H/G · V outputs where it is ``normed``; all in
    float32. ``step_limit``: of steps. ``gate_scale``, ``step_scale``: what z, and steps before their bias, are
    multiplied by.
    """

    convolution: CausalConvolution
    groups: int
    state_dim: int
    decay_H: torch.Tensor
    bias_H: torch.Tensor
    skip_H: torch.Tensor
    gain_Y: torch.Tensor
    epsilon: float
    step_limit: tuple[float, float] = (0.0, float("inf"))
    normed: bool = True
    gate_scale: float = 1.0
    step_scale: float = 1.0

    @property
    def outputs(self) -> int:
        return self.gain_Y.shape[0]

    def new_state(self, device: torch.device, dtype: torch.dtype) -> RecurrentState:
        lead, channels, H = self.convolution.seen - 1, self.convolution.weight_CK.shape[0], len(self.decay_H)
        keys, values = (self.groups, self.state_dim), (H, self.outputs // H)
        return state_with_memory(lead, channels, keys, values, device, dtype, self.decay_H.dtype)

    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        N, H, G, D = len(projected_NX), self.decay_H.shape[0], self.groups, self.state_dim
        Y, keys = self.outputs, G * D
        z_NY, x_NC, step_NH = projected_NX.tensor_split((Y, 2 * Y + 2 * keys), -1)
        x_NC = F.silu(self.convolution(x_NC, state, paths))
        x_NY, b_NX, c_NX = x_NC.tensor_split((Y, Y + keys), -1)
        step_NH = step_NH.to(self.bias_H.dtype) * self.step_scale + self.bias_H
        step_HN = F.softplus(step_NH).clamp(*self.step_limit).T
        x_HNV = x_NY.view(N, H, -1).transpose(0, 1)
        b_GND, c_GND = (part.view(N, G, D).transpose(0, 1) for part in (b_NX, c_NX))
        assert state.memory is not None
        k_GPD, u_HPV, path_HP1 = (state.until(kind, paths.first) for kind in (1, 2, 3))
        visible_NS, log_decay_HN = paths.visible_NS(state.length), self.decay_H[:, None] * step_HN
        o_HNV, u_HNV, path_HN = gated_delta(
            state.memory.state_HVD,
            state.memory.path_H,
            (k_GPD, u_HPV, path_HP1[..., 0]),
            *(c_GND, b_GND, x_HNV, step_HN, log_decay_HN, visible_NS),
            corrects=False,
        )
        for kind, new in enumerate((b_GND, u_HNV, path_HN[..., None]), start=1):
            state.write(kind, paths.first, new)
        o_HNV = o_HNV + x_HNV * self.skip_H[:, None, None]
        y_NY = o_HNV.transpose(0, 1).reshape(N, Y) * F.silu(z_NY.to(o_HNV.dtype) * self.gate_scale)
        if self.normed:
            y_NY = F.rms_norm(y_NY.view(N, G, -1), (Y // G,), None, self.epsilon).reshape(N, Y)
        return (y_NY * self.gain_Y).to(projected_NX.dtype)
