"""What the kernels of recurrent layers are given, field by field as ``source/`` declares it.

Legend: N rows, T tree slots, R rows that a state has room for, K tokens that a convolution sees, C channels, G key
heads, H value heads, D key dim, V value dim.
"""

from __future__ import annotations

import ctypes
from typing import Self

import torch

from spec_sdk.model.recurrent import state_space
from spec_sdk.model.recurrent.layers import CausalConvolution, GatedDeltaNet
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import BEHIND, STEP, RecurrentState
from spec_sdk_backends.native.structures import in_a_row

MOST_MEMORIES = 1 + BEHIND // STEP
"""States that rows of a pass may go on from: nodes of trees that are so deep."""
_WHOLE, _POINTER = ctypes.c_int64, ctypes.c_void_p


class Convolution(ctypes.Structure):
    """Weights [K, C], and biases [C] or none."""

    _fields_ = [("seen", _WHOLE), ("channels", _WHOLE), ("weights", _POINTER), ("bias", _POINTER)]

    @classmethod
    def of(cls, convolution: CausalConvolution) -> Self:
        weight_KC = in_a_row(convolution.weight_CK.float().T)
        bias_C = None if convolution.bias_C is None else in_a_row(convolution.bias_C.float())
        made = cls(*weight_KC.shape, weight_KC.data_ptr(), None if bias_C is None else bias_C.data_ptr())
        made.tensors = [weight_KC, *([] if bias_C is None else [bias_C])]
        return made


class DeltaNet(ctypes.Structure):
    """A gated delta net: −e^A [H], what is added to steps [H], and a gain [V]."""

    _fields_ = [
        ("convolution", Convolution),
        *((name, _WHOLE) for name in ("key_heads", "value_heads", "key_dim", "value_dim", "tiled")),
        ("epsilon", ctypes.c_double),
        *((name, _POINTER) for name in ("decay", "bias", "norm")),
    ]

    @classmethod
    def of(cls, net: GatedDeltaNet) -> Self:
        convolution = Convolution.of(net.convolution)
        tensors = [in_a_row(tensor) for tensor in (net.decay_H, net.bias_H, net.norm_V)]
        (H,), (V,) = net.decay_H.shape, net.norm_V.shape
        places = (tensor.data_ptr() for tensor in tensors)
        made = cls(convolution, net.key_heads, H, net.key_dim, V, net.tiled, net.epsilon, *places)
        made.tensors = [*convolution.tensors, *tensors]
        return made


class StateSpace(ctypes.Structure):
    """A state space: A [H], what is added to steps [H], and a gain [H V], as a delta net's; skips [H], and scales."""

    _fields_ = [
        ("net", DeltaNet),
        ("skip", _POINTER),
        *((name, ctypes.c_double) for name in ("least_step", "most_step", "gate_scale", "step_scale")),
        ("normed", _WHOLE),
    ]

    @classmethod
    def of(cls, space: state_space.StateSpace) -> Self:
        convolution = Convolution.of(space.convolution)
        tensors = [in_a_row(tensor) for tensor in (space.decay_H, space.bias_H, space.gain_Y, space.skip_H)]
        (H,), (Y,) = space.decay_H.shape, space.gain_Y.shape
        *of_net, skip = (tensor.data_ptr() for tensor in tensors)
        net = DeltaNet(convolution, space.groups, H, space.state_dim, Y // H, False, space.epsilon, *of_net)
        made = cls(net, skip, *space.step_limit, space.gate_scale, space.step_scale, space.normed)
        made.tensors = [*convolution.tensors, *tensors]
        return made


class Kept(ctypes.Structure):
    """One layer's rows, x [R, C], k [G, R, D], u [H, R, V] and Γ [H, R, 1], and memories, a state [H, V, D] and its Γ
    [H] each, from that of ``length`` tokens on; or x alone.

    Whoever makes one keeps the state as it is.
    """

    _fields_ = [
        *((name, _WHOLE) for name in ("length", "lead", "room")),
        *((name, _POINTER) for name in ("x", "k", "u", "path")),
        *((name, _WHOLE) for name in ("step", "behind", "memories")),
        ("memory", _POINTER * MOST_MEMORIES),
        ("memory_path", _POINTER * MOST_MEMORIES),
    ]

    @classmethod
    def of(cls, state: RecurrentState) -> Self:
        x_RC, *others = state.rows
        places = [tensor.data_ptr() for tensor in others] if others else [None] * 3
        memories = [] if state.memory is None else [state.memory, *state.further][:MOST_MEMORIES]
        made = cls(
            *(state.length, state.lead, x_RC.shape[0], x_RC.data_ptr(), *places),
            *(STEP, BEHIND, len(memories)),
        )
        for i, memory in enumerate(memories):
            made.memory[i], made.memory_path[i] = memory.state_HVD.data_ptr(), memory.path_H.data_ptr()
        return made

    @staticmethod
    def suits(state: RecurrentState, dtype: torch.dtype) -> bool:
        """Whether the kernels read and write it where it lies, beside rows in ``dtype``."""
        x_RC, *others = state.rows
        wide = [*others[:2], *([] if state.memory is None else [state.memory.state_HVD])]
        return (
            x_RC.dtype == dtype
            and all(tensor.is_contiguous() for tensor in (x_RC, *others, *wide))
            and all(tensor.dtype == torch.float32 for tensor in wide)
        )


class NewRows(ctypes.Structure):
    """N rows of a request's pass, and the intervals of its T tree slots."""

    _fields_ = [
        *((name, _WHOLE) for name in ("prefix", "first", "count")),
        *((name, _POINTER) for name in ("query", "start", "end")),
    ]

    @classmethod
    def of(cls, paths: RowPaths) -> Self:
        if paths.part is None:
            return cls(paths.prefix, paths.first, paths.count)
        mask = paths.part.mask
        tensors = [
            tensor.to(torch.int32).contiguous() for tensor in (mask.query_start_N, mask.key_start_T, mask.key_end_T)
        ]
        made = cls(paths.prefix, paths.first, paths.count, *(tensor.data_ptr() for tensor in tensors))
        made.tensors = tensors
        return made
