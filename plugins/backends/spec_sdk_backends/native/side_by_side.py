"""Quantised weights of 16 neighbouring outputs side by side, as ``source/quantized.h`` reads them.

Legend: O outputs, I inputs, P blocks of 16 outputs, S the outputs of a block, G groups of 32 inputs, C bytes of a
group, of one output or of a block, K rows, J inputs of a group.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, replace
from typing import Self

import torch

from spec_sdk.ops.quantized import (
    BITS,
    GROUP,
    QuantizedMatrix,
    QuantizedWeights,
    bytes_of_group,
    packed_codes,
    scales_of_group,
)
from spec_sdk_backends.native import huge_pages
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.row_numbers import numbers_of
from spec_sdk_backends.native.structures import DTYPES, Matrix, address, in_a_row

BESIDE = 16
"""Outputs of a block."""


@dataclass(frozen=True, eq=False)
class SideBySide(QuantizedWeights):
    """A :class:`QuantizedMatrix` in the layout of the native kernels: ``records_PGC``, uint8, of so many outputs.

    Where there are many groups, records lie in the order of ``source/quantized.h``, not in that of P and G.
    ``levels``: int8 [16], what codes stand for; None for themselves.
    """

    records_PGC: torch.Tensor
    _outputs: int
    levels: torch.Tensor | None = None

    @classmethod
    def of(cls, matrix: QuantizedMatrix) -> Self:
        """A copy. Raises TypeError for one that is not in host memory."""
        codes_OC = in_a_row(matrix.codes_OC)
        matrix = matrix.centred()
        scale_OG = in_a_row(matrix.scale_OG)
        offset_OG = None if matrix.offset_OG is None else in_a_row(matrix.offset_OG)
        groups = matrix.inputs // GROUP
        shape = (-(-matrix.outputs // BESIDE), groups, _record_bytes(matrix.bits, offset_OG is not None))
        records_PGC = huge_pages.empty(shape, torch.uint8)
        library().spec_lay_side_by_side(
            matrix.bits,
            codes_OC.data_ptr(),
            scale_OG.data_ptr(),
            None if offset_OG is None else offset_OG.data_ptr(),
            matrix.outputs,
            groups,
            records_PGC.data_ptr(),
            torch.get_num_threads(),
        )
        return cls(records_PGC, matrix.outputs, tensor_of(matrix.levels))

    @functools.cached_property
    def bits(self) -> int:
        return next(
            bits
            for bits in BITS
            if self.records_PGC.shape[2] in (_record_bytes(bits, False), _record_bytes(bits, True))
        )

    @functools.cached_property
    def offsets(self) -> bool:
        """Whether there are any."""
        return self.records_PGC.shape[2] > _record_bytes(self.bits, False)

    @property
    def outputs(self) -> int:
        return self._outputs

    @property
    def inputs(self) -> int:
        return self.records_PGC.shape[1] * GROUP

    @property
    def device(self) -> torch.device:
        return self.records_PGC.device

    @property
    def nbytes(self) -> int:
        return self.records_PGC.numel()

    def matrix(self, bias_O: torch.Tensor | None, rounds: bool = False) -> Matrix:
        """For a kernel, as long as both live. ``rounds``: the kernel rounds rows to 8 bits."""
        return Matrix.quantized(
            self.records_PGC, self.bits, self.offsets, self.outputs, self.inputs, bias_O, rounds, self.levels
        )

    @functools.cached_property
    def _matrix(self) -> Matrix:
        return self.matrix(None)

    def dequantized(self, dtype: torch.dtype, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        if dtype not in DTYPES:
            return self.dequantized(torch.float32, rows).to(dtype)
        first, named = 0, None
        if isinstance(rows, torch.Tensor):
            numbers = numbers_of(rows, self.outputs)
            count = len(numbers)
            named = (ctypes.c_int64 * count)(*numbers)
        else:
            first, end, step = (rows or slice(None)).indices(self.outputs)
            if step != 1:
                raise IndexError(f"every {step}th row: rows must be neighbours")
            count = max(0, end - first)
        to_KI = torch.empty(count, self.inputs, dtype=dtype)
        library().spec_expand(
            DTYPES[dtype],
            address(self._matrix),
            None if named is None else ctypes.addressof(named),
            first,
            count,
            to_KI.data_ptr(),
            torch.get_num_threads(),
        )
        return to_KI

    def plain(self) -> QuantizedMatrix:
        ends = [bytes_of_group(self.bits) * BESIDE, _record_bytes(self.bits, False)]
        P, G, _ = self.records_PGC.shape
        place_PG = torch.empty(P, G, dtype=torch.int64)
        library().spec_places_of_records(G, P, place_PG.data_ptr())
        codes, scale, *offset = self.records_PGC.flatten(0, 1)[place_PG].tensor_split(ends, 2)
        dwords_OGC = _by_output(codes, 4)[: self.outputs]
        factors = [_by_output(part, 2)[: self.outputs].contiguous() for part in (scale, *offset) if part.numel()]
        matrix = QuantizedMatrix(
            _codes(dwords_OGC, self.bits), *(factor.view(torch.float16).flatten(1) for factor in factors)
        )
        return matrix if self.levels is None else replace(matrix, levels=tuple(self.levels.tolist()))


@functools.cache
def tensor_of(levels: tuple[int, ...] | None) -> torch.Tensor | None:
    """Levels for the kernels, kept as long as the process lives: there are few kinds."""
    return None if levels is None else torch.tensor(levels, dtype=torch.int8)


def _record_bytes(bits: int, offsets: bool) -> int:
    return BESIDE * (bytes_of_group(bits) + (4 if offsets else 2) * scales_of_group(bits))


def _by_output(part_PGC: torch.Tensor, step: int) -> torch.Tensor:
    """[P, G, C] as [O, G, an output's bytes]."""
    P, G, size = part_PGC.shape
    lines = part_PGC.reshape(P, G, size // BESIDE // step, BESIDE, step)
    return lines.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)


def _codes(dwords_OGC: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes as a :class:`QuantizedMatrix` has them, of dwords [O, G, an output's bytes of all lines]."""
    outputs, G, _ = dwords_OGC.shape
    if bits == 8:
        signed = dwords_OGC.reshape(outputs, G, GROUP // 4, 2, 2).transpose(3, 4).reshape(outputs, -1).view(torch.int8)
        return torch.where(signed < 0, signed ^ 127, signed)
    lower_OGC, upper_OGC = dwords_OGC[..., : GROUP // 2], dwords_OGC[..., GROUP // 2 :]
    pairs = lower_OGC.reshape(outputs, G, GROUP // 8, 2, 2).transpose(3, 4)
    codes_OGJ = torch.stack((pairs & 15, pairs >> 4), 4).reshape(outputs, G, GROUP)
    if bits > 4:
        width, lines = bits - 4, scales_of_group(bits)
        fields = torch.stack([upper_OGC >> at & (1 << width) - 1 for at in range(0, 8, width)], 3)
        # [lines of upper bits, odd inputs, the latter of four, other lines of each, halves of a byte], as inputs lie
        apart = fields.view(outputs, G, lines, 2, 2, 4 // lines, 2).permute(0, 1, 2, 5, 4, 6, 3)
        codes_OGJ |= apart.reshape(outputs, G, GROUP) << 4
    return packed_codes(codes_OGJ.view(torch.int8), bits)
