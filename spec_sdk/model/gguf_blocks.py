"""The blocks of GGUF's quantisations, taken apart into codes, scales and offsets (ggml's block_q4_0 and so on).

A block is 32 or 256 weights of a row. Codes are exact. Scales and offsets are those of the block, or products of what
it has for all of its weights and for parts of them; these are rounded to float16.

Legend: R rows, B blocks of a row, J bytes of a block, W weights of it, S scales of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from spec_sdk.model.gguf_fields import NOT_LINEAR, fields, halves, scales_and_mins, sixteen_scales
from spec_sdk.model.mxfp4 import FLOAT4, half_of_powers
from spec_sdk.ops.quantized import GROUP, middle_of, packed_codes

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float32]
Of = Callable[[Bytes], npt.NDArray[np.generic]]
"""Something of blocks [R, B, J]."""


@dataclass(frozen=True)
class BlockLayout:
    """``bits``: of the codes that a block's become in a :class:`~spec_sdk.ops.quantized.QuantizedMatrix`. ``size``: its
    bytes. ``codes``: its codes [R, B, …], as such a matrix has them. ``scales`` [R, B, S]; ``offsets``: the same, if
    there are any. ``stored``: whether both are in the block just so. ``levels``: what codes
    stand for, if not for themselves.
    """

    bits: int
    size: int
    codes: Of
    scales: Of
    offsets: Of | None = None
    stored: bool = False
    levels: tuple[int, ...] | None = None


def codes_of(stored: Bytes, kind: str) -> Bytes:
    """The codes [rows, bytes] of stored rows [rows, bytes]."""
    layout = LAYOUTS[kind]
    return np.ascontiguousarray(layout.codes(_blocks(stored, layout))).view(np.uint8).reshape(len(stored), -1)


def scales_of(stored: Bytes, kind: str) -> npt.NDArray[np.float16]:
    """The scales of rows; infinite where float16 cannot hold them."""
    return _factors(stored, LAYOUTS[kind], LAYOUTS[kind].scales)


def offsets_of(stored: Bytes, kind: str) -> npt.NDArray[np.float16] | None:
    """What is added to scale · code, as many as there are scales; None for a kind without."""
    layout = LAYOUTS[kind]
    return None if layout.offsets is None else _factors(stored, layout, layout.offsets)


def _blocks(stored: Bytes, layout: BlockLayout) -> Bytes:
    return stored.reshape(len(stored), -1, layout.size)


def _factors(stored: Bytes, layout: BlockLayout, of: Of) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore", invalid="ignore"):
        return of(_blocks(stored, layout)).astype("<f2").reshape(len(stored), -1)


def _packed(bits: int, codes_RBW: npt.NDArray[np.int8]) -> Bytes:
    """Codes as they are stored."""
    groups = torch.from_numpy(np.ascontiguousarray(codes_RBW)).view(len(codes_RBW), -1, GROUP)
    packed: Bytes = packed_codes(groups, bits).numpy()
    return packed


def _first(blocks: Bytes) -> npt.NDArray[np.generic]:
    return halves(blocks, 0)


def _second(blocks: Bytes) -> npt.NDArray[np.generic]:
    return halves(blocks, 2)


def _q4_k_scales(blocks: Bytes) -> Numbers:
    """Of Q5_K, too."""
    return _wide(blocks, 0) * scales_and_mins(blocks[..., 4:16])[0]


def _q4_k_offsets(blocks: Bytes) -> Numbers:
    return -_wide(blocks, 2) * scales_and_mins(blocks[..., 4:16])[1]


def _q2_k_scales(blocks: Bytes) -> Numbers:
    return _wide(blocks, 80) * (blocks[..., :16] & 15)


def _q2_k_offsets(blocks: Bytes) -> Numbers:
    return -_wide(blocks, 82) * (blocks[..., :16] >> 4)


def _iq4_xs_scales(blocks: Bytes) -> Numbers:
    lower, upper = fields(blocks[..., 4:8], 4, 1), fields(blocks[..., 2:4], 2, 1)
    return _wide(blocks, 0) * (lower + 16 * upper - 32)


def _mxfp4_scales(blocks: Bytes) -> Numbers:
    # levels are twice the numbers
    return half_of_powers(blocks[..., :1])


def _wide(blocks: Bytes, at: int) -> Numbers:
    return halves(blocks, at).astype(np.float32)


def _q3_k_codes(blocks: Bytes) -> Bytes:
    # less 4 where the mask has no bit
    return _packed(6, fields(blocks[..., 32:96], 2, 32) + 4 * fields(blocks[..., :32], 1, 32) - 4 + middle_of(6))


def _q5_k_codes(blocks: Bytes) -> Bytes:
    return _packed(5, fields(blocks[..., 48:], 4, 32) + 16 * fields(blocks[..., 16:48], 1, 32))


def _q5_codes(first: int) -> Of:
    """Of Q5_0 and Q5_1, where the upper bits are before the others."""
    return lambda blocks: np.concatenate([blocks[..., first + 4 :], blocks[..., first : first + 4]], -1)


def _q6_k_codes(blocks: Bytes) -> Bytes:
    return _packed(6, fields(blocks[..., :128], 4, 64) + 16 * fields(blocks[..., 128:192], 2, 32))


LAYOUTS = {
    "Q4_0": BlockLayout(4, 18, lambda b: b[..., 2:], _first, stored=True),
    "Q4_1": BlockLayout(4, 20, lambda b: b[..., 4:], _first, _second, stored=True),
    "Q5_0": BlockLayout(5, 22, _q5_codes(2), _first, stored=True),
    "Q5_1": BlockLayout(5, 24, _q5_codes(4), _first, _second, stored=True),
    "Q8_0": BlockLayout(8, 34, lambda b: b[..., 2:], _first, stored=True),
    "Q2_K": BlockLayout(6, 84, lambda b: _packed(6, fields(b[..., 16:80], 2, 32)), _q2_k_scales, _q2_k_offsets),
    "Q3_K": BlockLayout(6, 110, _q3_k_codes, lambda b: _wide(b, 108) * sixteen_scales(b[..., 96:108])),
    "Q4_K": BlockLayout(4, 144, lambda b: _packed(4, fields(b[..., 16:], 4, 32)), _q4_k_scales, _q4_k_offsets),
    "Q5_K": BlockLayout(5, 176, _q5_k_codes, _q4_k_scales, _q4_k_offsets),
    "Q6_K": BlockLayout(6, 210, _q6_k_codes, lambda b: _wide(b, 208) * b[..., 192:208].view(np.int8)),
    "IQ4_NL": BlockLayout(4, 18, lambda b: b[..., 2:], _first, stored=True, levels=NOT_LINEAR),
    "IQ4_XS": BlockLayout(4, 136, lambda b: b[..., 8:], _iq4_xs_scales, levels=NOT_LINEAR),
    "MXFP4": BlockLayout(4, 17, lambda b: b[..., 1:], _mxfp4_scales, levels=FLOAT4),
}
"""By ggml's name of the quantisation."""
