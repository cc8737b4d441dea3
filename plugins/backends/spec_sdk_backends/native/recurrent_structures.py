"""What the kernels of recurrent layers are given, field by field as ``source/`` declares it.

Legend: N rows, T tree slots, R rows that a state has room for, K tokens that a convolution sees, C channels, G key
heads, H value heads, D key dim, V value dim.
"""

from __future__ import annotations

import ctypes
from typing import Self

import torch

from spec_sdk.model.recurrent.layers import CausalConvolution, GatedDeltaNet
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import RecurrentState
from spec_sdk_backends.native.structures import in_a_row

_WHOLE, _POINTER = ctypes.c_int64, ctypes.c_void_p


class Convolution(ctypes.Structure):
    """Weights [K, C]."""

    _fields_ = [("seen", _WHOLE), ("channels", _WHOLE), ("weights", _POINTER)]

    @classmethod
    def of(cls, convolution: CausalConvolution) -> Self:
        weight_KC = in_a_row(convolution.weight_CK.float().T)
        made = cls(*weight_KC.shape, weight_KC.data_ptr())
        made.tensors = [weight_KC]
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


class Kept(ctypes.Structure):
    """One layer's state [H, V, D] and rows: x [R, C], k [G, R, D], u [H, R, V] and Γ [H, R, 1]; or x alone.

    Whoever makes one keeps the state as it is.
    """

    _fields_ = [
        *((name, _WHOLE) for name in ("length", "lead", "room")),
        *((name, _POINTER) for name in ("x", "k", "u", "path", "memory")),
    ]

    @classmethod
    def of(cls, state: RecurrentState) -> Self:
        x_RC, *others = state.rows
        places = [tensor.data_ptr() for tensor in others] if others else [None] * 3
        memory_HVD = state.memory_HVD
        return cls(
            state.length,
            state.lead,
            x_RC.shape[0],
            x_RC.data_ptr(),
            *places,
            None if memory_HVD is None else memory_HVD.data_ptr(),
        )

    @staticmethod
    def suits(state: RecurrentState, dtype: torch.dtype) -> bool:
        """Whether the kernels read and write it where it lies, beside rows in ``dtype``."""
        x_RC, *others = state.rows
        wide = others if state.memory_HVD is None else [*others, state.memory_HVD]
        return (
            x_RC.dtype == dtype
            and x_RC.is_contiguous()
            and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in wide)
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
