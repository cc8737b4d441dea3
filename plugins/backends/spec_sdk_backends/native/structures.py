"""What the kernels are given, field by field as ``source/`` declares it. Whoever makes one keeps its tensors alive.

Legend: O outputs, I inputs, B requests, N rows of a request, T tree slots of a request.
"""

from __future__ import annotations

import ctypes
from typing import Self

import torch

from spec_sdk.ops import rows
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.feed_forward import Activation
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What the kernels compute in, and their numbers there."""

ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "clamped_swiglu": 2, "squared_relu": 3}

INT32 = 4
"""Bytes."""
_WHOLE, _POINTER = ctypes.c_int64, ctypes.c_void_p


def address(structure: ctypes.Structure) -> int:
    return ctypes.addressof(structure)


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for another in a computation that is traced: a compiler must not look into a product."""
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers one behind the other, for a kernel to read. Raises TypeError where there are none in host memory."""
    if is_stand_in(tensor) or tensor.device.type != "cpu":
        raise TypeError(f"a {type(tensor).__name__} on {tensor.device} has no numbers in host memory")
    return tensor.detach().resolve_neg().contiguous()


def _place(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class Matrix(ctypes.Structure):
    _fields_ = [
        ("bits", _WHOLE),
        ("offsets", _WHOLE),
        ("rounds", _WHOLE),
        ("outputs", _WHOLE),
        ("inputs", _WHOLE),
        ("weights", _POINTER),
        ("bias", _POINTER),
        ("levels", _POINTER),
    ]

    @classmethod
    def dense(cls, panels: torch.Tensor, outputs: int, inputs: int, bias_O: torch.Tensor | None) -> Self:
        """Of weights in panels (``panels.py``)."""
        return cls(0, 0, 0, outputs, inputs, panels.data_ptr(), _place(bias_O))

    @classmethod
    def quantized(
        cls,
        records: torch.Tensor,
        bits: int,
        offsets: bool,
        outputs: int,
        inputs: int,
        bias_O: torch.Tensor | None,
        rounds: bool = False,
        levels: torch.Tensor | None = None,
    ) -> Self:
        """``rounds``: rows are rounded to 8 bits before they are multiplied. ``levels``: int8 [16], what codes of 4
        bits stand for.
        """
        return cls(bits, offsets, rounds, outputs, inputs, records.data_ptr(), _place(bias_O), _place(levels))


class Pass(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("requests", "width", "slots")),
        *((name, _POINTER) for name in ("slot", "prefix", "write_at", "live", "position", "query_start")),
        *((name, _POINTER) for name in ("key_start", "key_end", "key_position")),
        *((name, _WHOLE) for name in ("row_stride", "slot_stride")),
    ]

    @classmethod
    def of(cls, inputs: PassInputs) -> Self:
        B, N, T = inputs.sizes
        if inputs.flat is not None:
            return cls._of_flat(inputs.flat, B, N, T)
        tensors = [
            tensor.to(torch.int32).contiguous()
            for tensor in (
                inputs.slot_B,
                inputs.prefix_B,
                inputs.write_at_B,
                inputs.live_B,
                inputs.position_BN,
                inputs.query_start_BN,
                inputs.key_start_BT,
                inputs.key_end_BT,
                inputs.key_position_BT,
            )
        ]
        made = cls(B, N, T, *(tensor.data_ptr() for tensor in tensors), N, T)
        made.tensors = tensors
        return made

    @classmethod
    def of_mask(cls, mask: AttentionMask) -> Self:
        """The rows of one request, in slot 0."""
        N, T = mask.queries, mask.key_start_T.shape[0]
        live = N if mask.live is None else mask.live
        of_request = torch.tensor([0, mask.prefix, mask.prefix + T - N, live], dtype=torch.int32)
        tensors = [
            *of_request,
            mask.query_position_N.contiguous(),
            mask.query_start_N.contiguous(),
            mask.key_start_T.contiguous(),
            mask.key_end_T.contiguous(),
            mask.key_position_T.contiguous(),
        ]
        made = cls(1, N, T, *(tensor.data_ptr() for tensor in tensors), N, T)
        made.tensors = tensors
        return made

    @classmethod
    def _of_flat(cls, flat: torch.Tensor, B: int, N: int, T: int) -> Self:
        """Of integers in one tensor, as :meth:`PassInputs.of` lays them out."""
        row, slot, request = INT32 * B * N, INT32 * B * T, INT32 * B
        first = flat.data_ptr()
        by_slot = first + 3 * row
        by_request = by_slot + 3 * slot
        made = cls(
            B,
            N,
            T,
            *(by_request + i * request for i in range(4)),
            first + row,
            first + 2 * row,
            *(by_slot + i * slot for i in range(3)),
            N,
            T,
        )
        made.tensors = [flat]
        return made


class Cache(ctypes.Structure):
    _fields_ = [
        ("dtype", _WHOLE),
        ("keys", _POINTER),
        ("values", _POINTER),
        ("layer_stride", _WHOLE),
        ("slot_stride", _WHOLE),
        ("head_stride", _WHOLE),
    ]

    @classmethod
    def of(cls, k_LSGCD: torch.Tensor, v_LSGCD: torch.Tensor) -> Self:
        return cls(DTYPES[k_LSGCD.dtype], k_LSGCD.data_ptr(), v_LSGCD.data_ptr(), *k_LSGCD.stride()[:3])

    @classmethod
    def of_pass(cls, cache: PassCache, layers: int) -> Self:
        return cls.of(*cache.layers(0, layers))


class Heads(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("queries", "shared", "dim")),
        *((name, ctypes.c_float) for name in ("scale", "cap")),
        ("window", _WHOLE),
        ("sinks", _POINTER),
    ]


class Ends(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("first", "last")),
        *((name, _POINTER) for name in ("mean", "log_sum")),
    ]


class Gain(ctypes.Structure):
    _fields_ = [("at", _POINTER), ("wide", _WHOLE)]

    @classmethod
    def of(cls, gain: torch.Tensor | None, dtype: torch.dtype) -> Self:
        """Of rows in ``dtype``; None for no norm."""
        return cls(_place(gain), gain is not None and gain.dtype != dtype)

    @staticmethod
    def suits(gain: torch.Tensor | None, dtype: torch.dtype) -> bool:
        """Whether the kernels read it beside rows in ``dtype``."""
        return gain is None or gain.dtype in (dtype, torch.float32)


class Experts(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("count", "per_row", "by_sigmoid", "normalised")),
        *((name, ctypes.c_double) for name in ("least_sum", "scale")),
        *((name, _WHOLE) for name in ("groups", "groups_of_row")),
        *((name, _POINTER) for name in ("router", "router_bias", "correction", "shared_gate")),
        *((name, ctypes.POINTER(Matrix)) for name in ("gate_up", "down")),
        *((name, Matrix) for name in ("shared_gate_up", "shared_down")),
        ("router_norm", Gain),
        ("weight", _POINTER),
    ]


class Latents(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("latents", "queries")),
        *((name, ctypes.POINTER(Matrix)) for name in ("keys", "values")),
        *((name, Gain) for name in ("query_norm", "latent_norm")),
        *((name, _WHOLE) for name in ("rank", "plain", "rotated", "value")),
    ]


class Block(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
        ("experts", ctypes.POINTER(Experts)),
        *((name, Gain) for name in ("input_norm", "q_norm", "k_norm", "post_norm")),
        *((name, Gain) for name in ("attention_output_norm", "mlp_output_norm")),
        *((name, ctypes.c_double) for name in ("scale", "cap")),
        ("window", _WHOLE),
        ("rope", _WHOLE),
        ("sinks", _POINTER),
        ("latents", ctypes.POINTER(Latents)),
    ]


class Shape(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("model", "heads", "kv_heads", "dim", "mlp", "experts", "per_row")),
        ("epsilon", ctypes.c_double),
        *((name, _WHOLE) for name in ("activation", "wide_qk_norm", "latent")),
    ]


class Lookup(ctypes.Structure):
    _fields_ = [
        ("matrix", Matrix),
        *((name, _POINTER) for name in ("rows", "codes", "scale", "offset", "levels")),
        ("bits", _WHOLE),
        ("factor", ctypes.c_double),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        ("blocks", _POINTER),
        ("layers", _WHOLE),
        ("embedding", Lookup),
        ("tokens", _WHOLE),
        ("final_norm", Gain),
        ("head", Matrix),
    ]


class Scored(ctypes.Structure):
    _fields_ = [("rows", _WHOLE), ("row", _POINTER), ("logits", _POINTER)]


Look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_double)


class Ranks(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("rank", "size")),
        *((name, _POINTER) for name in ("number_of", "messages")),
        *((name, _WHOLE) for name in ("line", "capacity", "number")),
        ("look_s", ctypes.c_double),
        ("look", Look),
        ("lost", _WHOLE),
    ]


class DraftModel(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        ("blocks", _POINTER),
        ("layers", _WHOLE),
        ("embedding", Lookup),
        *((name, Gain) for name in ("embedding_norm", "entering_norm", "final_norm")),
        ("feeds_normed", _WHOLE),
        ("logit_scale", ctypes.c_double),
    ]


class Growing(ctypes.Structure):
    _fields_ = [
        *((name, _WHOLE) for name in ("slot", "prefix", "rows")),
        *((name, _POINTER) for name in ("token", "feature")),
        ("heads", _WHOLE),
        *((name, _POINTER) for name in ("head", "token_of", "cosines", "sines")),
        *((name, _WHOLE) for name in ("depth", "width", "nodes")),
        ("group", _POINTER),
        ("least_reach", ctypes.c_double),
        *((name, _POINTER) for name in ("uniform", "shaping")),
        ("tokens", _WHOLE),
        *((name, _POINTER) for name in ("logits", "logprob", "token_top", "probability", "state")),
        *((name, _POINTER) for name in ("node_token", "node_parent", "fed")),
    ]


class Mass(ctypes.Structure):
    _fields_ = [("tokens", _WHOLE), ("of", _POINTER), ("sums", _POINTER)]


class Shaping(ctypes.Structure):
    _fields_ = [
        ("temperature", ctypes.c_double),
        ("top_k", _WHOLE),
        *((name, ctypes.c_double) for name in ("top_p", "min_p")),
    ]

    @classmethod
    def of(cls, params: rows.Shaping, temperature: float) -> Self:
        """Those of ``params``, but for the ``temperature``."""
        return cls(temperature, params.top_k, params.top_p, params.min_p)
