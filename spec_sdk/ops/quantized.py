"""Matrices of weights in few bits.

Legend: O outputs, I inputs, C bytes of codes in a row, G groups of 32 inputs, S scales of a row, K inputs of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

GROUP = 32
"""Neighbouring inputs of a row whose codes lie together. They share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0; of 6
bits each half of them has its own, as in Q6_K.
"""

BITS = (4, 6, 8)
"""Of a code."""


def scales_of_group(bits: int) -> int:
    """Of codes of so many bits."""
    return 2 if bits == 6 else 1


def bytes_of_group(bits: int) -> int:
    """Of codes of so many bits."""
    return GROUP * bits // 8


class QuantizedWeights(ABC):
    """Weights [O, I] in few bits, in whatever layout a backend multiplies fastest."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of a code: one of :data:`BITS`."""

    @property
    @abstractmethod
    def inputs(self) -> int: ...

    @property
    @abstractmethod
    def outputs(self) -> int: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in memory, scales and offsets included."""

    @abstractmethod
    def dequantized(self, dtype: torch.dtype, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        """The weights [O, I], or some rows of them: computed in float32, then rounded to ``dtype``.

        ``rows``: a slice of neighbours, or integers [K]. Raises IndexError for rows that there are not.
        """

    @abstractmethod
    def plain(self) -> QuantizedMatrix:
        """The same codes, scales and offsets, row by row."""


@dataclass(frozen=True, eq=False)
class QuantizedMatrix(QuantizedWeights):
    """Weights [O, I] = scale · code + offset, both of each group of 32 inputs; of 16 where codes have 6 bits.

    ``codes_OC``: int8 [O, I] of 8 bits; or uint8 of 4, [O, I / 2], or of 6, [O, 3 / 4 I]. Codes of 4 bits are 0 … 15:
    byte j of a group's 16 holds code j in its low half and code j + 16 in its high half, as in GGUF files. Codes of 6
    bits are -32 … 31: 32 more than the code has its lower 4 bits in bytes like those, and the upper 2 behind these in 8
    bytes, of which number j holds those of codes j, j + 8, j + 16 and j + 24, the first in its lowest bits.

    ``scale_OG``: float16 [O, S], S = I / 32, or I / 16 of 6 bits. ``offset_OG``: the same, or None for none. Raises
    ValueError for parts that do not fit each other.
    """

    codes_OC: torch.Tensor
    scale_OG: torch.Tensor
    offset_OG: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.codes_OC.dtype not in (torch.int8, torch.uint8):
            raise ValueError(f"codes are {self.codes_OC.dtype}, neither int8 nor uint8")
        expected = (self.codes_OC.shape[0], self.inputs // GROUP * scales_of_group(self.bits))
        for part in (self.scale_OG, self.offset_OG):
            if part is not None and (part.shape != expected or part.dtype != torch.float16):
                raise ValueError(f"scales {tuple(part.shape)} {part.dtype} do not fit codes {expected}")
        if self.inputs % GROUP:
            raise ValueError(f"{self.inputs} inputs are not whole groups of {GROUP}")

    @property
    def bits(self) -> int:
        return bits_of(self.codes_OC.dtype == torch.int8, self.codes_OC.shape[1], self.scale_OG.shape[1])

    @property
    def inputs(self) -> int:
        return self.codes_OC.shape[1] * 8 // self.bits

    @property
    def outputs(self) -> int:
        return self.codes_OC.shape[0]

    @property
    def device(self) -> torch.device:
        return self.codes_OC.device

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self._parts())

    def dequantized(self, dtype: torch.dtype, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        if rows is not None:
            return self.rows(rows).dequantized(dtype)
        w_OSK = self._codes().view(*self.scale_OG.shape, -1).mul_(self.scale_OG.float()[..., None])
        if self.offset_OG is not None:
            w_OSK.add_(self.offset_OG.float()[..., None])
        return w_OSK.view(self.outputs, self.inputs).to(dtype)

    def plain(self) -> QuantizedMatrix:
        return self

    def rows(self, which: slice | torch.Tensor) -> QuantizedMatrix:
        """Some rows: a slice in the same memory, or copies of those that integers name."""
        return self._each(lambda part: part[which])

    def columns(self, first: int, end: int) -> QuantizedMatrix:
        """Columns ``first`` … ``end - 1``, copied. Raises ValueError unless they are whole groups."""
        if first % GROUP or end % GROUP:
            raise ValueError(f"columns {first} to {end} are not whole groups of {GROUP}")
        groups = self.inputs // GROUP
        return self._each(
            lambda part: part.view(len(part), groups, -1)[:, first // GROUP : end // GROUP].flatten(1).contiguous()
        )

    def padded(self, outputs: int) -> QuantizedMatrix:
        """With rows of weight 0 below, up to so many."""
        return self._each(lambda part: torch.nn.functional.pad(part, (0, 0, 0, outputs - self.outputs)))

    def to(self, device: torch.device) -> QuantizedMatrix:
        return self._each(lambda part: part.to(device))

    @staticmethod
    def below(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix | None:
        """One below the other, in as many bits as the widest of them has; None where no form holds all of them exactly:
        codes of 6 beside codes of 8 bits, and unlike inputs.
        """
        bits = max(matrix.bits for matrix in matrices)
        if len({matrix.inputs for matrix in matrices}) > 1 or bits == 8 and any(m.bits == 6 for m in matrices):
            return None
        if len(matrices) == 1:
            return matrices[0]
        matrices = [matrix._in(bits) for matrix in matrices]
        offset_OG = None
        if any(matrix.offset_OG is not None for matrix in matrices):
            none = [torch.zeros_like(m.scale_OG) for m in matrices]
            added = [no if m.offset_OG is None else m.offset_OG for m, no in zip(matrices, none, strict=True)]
            offset_OG = torch.cat(added)
        codes, scales = [matrix.codes_OC for matrix in matrices], [matrix.scale_OG for matrix in matrices]
        return QuantizedMatrix(torch.cat(codes), torch.cat(scales), offset_OG)

    def _in(self, bits: int) -> QuantizedMatrix:
        """The same weights in more bits, of a matrix in 4."""
        if bits == self.bits:
            return self
        codes_OGK = self._codes().to(torch.int8)
        codes_OC = codes_OGK.flatten(1) if bits == 8 else packed_in_six(codes_OGK)
        each = scales_of_group(bits)
        factors = [part.repeat_interleave(each, 1) for part in self._parts()[1:]]
        return QuantizedMatrix(codes_OC, *factors)

    def _parts(self) -> tuple[torch.Tensor, ...]:
        return (self.codes_OC, self.scale_OG, *(() if self.offset_OG is None else (self.offset_OG,)))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedMatrix:
        return QuantizedMatrix(*(change(part) for part in self._parts()))

    def _codes(self) -> torch.Tensor:
        """The codes [O, G, K] as new float32."""
        groups_OGC = self.codes_OC.view(self.outputs, -1, bytes_of_group(self.bits))
        if self.bits == 8:
            return groups_OGC.to(torch.float32, copy=True)
        codes_OGK = torch.empty(*groups_OGC.shape[:2], GROUP, device=self.device)
        halves_OGK = groups_OGC[..., : GROUP // 2]
        codes_OGK[..., : GROUP // 2] = halves_OGK & 15
        codes_OGK[..., GROUP // 2 :] = halves_OGK >> 4
        if self.bits == 6:
            upper_OG8 = groups_OGC[..., GROUP // 2 :]
            codes_OGK += torch.cat([upper_OG8 >> 2 * field & 3 for field in range(4)], 2) * 16.0 - 32.0
        return codes_OGK


def bits_of(signed: bool, bytes_of_row: int, scales_of_row: int) -> int:
    """Of codes that take so many bytes of a row, by whether these have a sign."""
    if signed:
        return 8
    return 6 if scales_of_row and bytes_of_row == scales_of_row * bytes_of_group(6) // scales_of_group(6) else 4


def packed_in_four(codes_OGK: torch.Tensor) -> torch.Tensor:
    """Codes of 4 bits, any integers [O, G, K], as a :class:`QuantizedMatrix` has them."""
    low_OGH, high_OGH = codes_OGK.to(torch.uint8).chunk(2, 2)
    return (low_OGH | high_OGH << 4).flatten(1)


def packed_in_six(codes_OGK: torch.Tensor) -> torch.Tensor:
    """Codes of 6 bits, integers -32 … 31 with a sign [O, G, K], as a :class:`QuantizedMatrix` has them."""
    shifted_OGK = (codes_OGK + 32).to(torch.uint8)
    lower_OC = packed_in_four(shifted_OGK & 15)
    fields = (shifted_OGK >> 4).chunk(4, 2)
    upper_OG8 = fields[0] | fields[1] << 2 | fields[2] << 4 | fields[3] << 6
    return torch.cat([lower_OC.view(*upper_OG8.shape[:2], -1), upper_OG8], 2).flatten(1)
