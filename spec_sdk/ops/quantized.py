"""Matrices of weights in few bits.

Legend: O outputs, I inputs, C bytes of codes in a row, G groups of 32 inputs, S scales of a row, K inputs of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from spec_sdk.ops.uploads import numbers_on

GROUP = 32
"""Neighbouring inputs of a row whose codes lie together. They share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0; of 6
bits each half of them has its own, as in Q6_K.
"""

BITS = (4, 5, 6, 8)
"""Of a code."""


_LOOKED_UP = 1 << 20
"""Weights whose levels are looked up at a time."""


def scales_of_group(bits: int) -> int:
    """Of codes of so many bits."""
    return 2 if bits == 6 else 1


def bytes_of_group(bits: int) -> int:
    """Of codes of so many bits."""
    return GROUP * bits // 8


def middle_of(bits: int) -> int:
    """What codes of so many bits are stored with added, where there are no offsets."""
    return 0 if bits == 8 else 1 << (bits - 1)


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
    Or scale · level, where codes of 4 bits stand for ``levels``, 16 whole numbers of 8 bits, as in IQ4_NL and MXFP4.

    ``codes_OC``: int8 [O, I] of 8 bits, or uint8 [O, b / 8 I] of fewer, b. Those are stored as 0 … 2^b - 1, which is
    what they mean beside offsets; without, they mean half of 2^b less. Of 4 bits, byte j of a group's 16 holds code j
    in its low half and code j + 16 in its high half, as in GGUF files; of 5 and 6 so are the lower 4 bits. Behind these
    the upper bits of 5 are those of 4 bytes, one after the other; the upper 2 of 6 bits are in 8 bytes, of which number
    j holds those of codes j, j + 8, j + 16 and j + 24, the first in its lowest bits.

    ``scale_OG``: float16 [O, S], S = I / 32, or I / 16 of 6 bits. ``offset_OG``: the same, or None for none, as
    beside levels. Raises ValueError for parts that do not fit each other.
    """

    codes_OC: torch.Tensor
    scale_OG: torch.Tensor
    offset_OG: torch.Tensor | None = None
    levels: tuple[int, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.codes_OC.dtype not in (torch.int8, torch.uint8):
            raise ValueError(f"codes are {self.codes_OC.dtype}, neither int8 nor uint8")
        signed, size = self.codes_OC.dtype == torch.int8, self.codes_OC.shape
        bits = bits_of(signed, size[1], self.scale_OG.shape[-1]) or 4
        inputs = size[1] * 8 // bits
        expected = (size[0], inputs // GROUP * scales_of_group(bits))
        for part in (self.scale_OG, self.offset_OG):
            if part is not None and (part.shape != expected or part.dtype != torch.float16):
                raise ValueError(f"scales {tuple(part.shape)} {part.dtype} do not fit codes {expected}")
        if inputs % GROUP:
            raise ValueError(f"{inputs} inputs are not whole groups of {GROUP}")
        if self.levels is not None and (bits != 4 or self.offset_OG is not None or not are_levels(self.levels)):
            raise ValueError(f"codes of {bits} bits do not stand for levels {self.levels}")

    @property
    def bits(self) -> int:
        found = bits_of(self.codes_OC.dtype == torch.int8, self.codes_OC.shape[1], self.scale_OG.shape[1])
        assert found is not None
        return found

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
        return sum(part.numel() * part.element_size() for part in self.parts())

    def dequantized(self, dtype: torch.dtype, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        if rows is not None:
            return self.rows(rows).dequantized(dtype)
        w_OSK = self.codes().view(*self.scale_OG.shape, -1).mul_(self.scale_OG.float()[..., None])
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
        codes of 6 beside codes of 8 bits, unlike inputs, and scales that are too large to be offsets.
        """
        if len({matrix.levels for matrix in matrices}) > 1:
            matrices = [matrix.without_levels() for matrix in matrices]
        bits = max(matrix.bits for matrix in matrices)
        if len({matrix.inputs for matrix in matrices}) > 1 or bits == 8 and any(m.bits == 6 for m in matrices):
            return None
        if len(matrices) == 1:
            return matrices[0]
        offsets = any(matrix.offset_OG is not None for matrix in matrices)
        whole = QuantizedMatrix.stacked([matrix._in(bits, offsets) for matrix in matrices])
        return None if whole.offset_OG is not None and not whole.offset_OG.isfinite().all() else whole

    @staticmethod
    def stacked(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
        """One below the other, of matrices of one form."""
        parts = zip(*(matrix.parts() for matrix in matrices), strict=True)
        return replace(QuantizedMatrix(*(torch.cat(part) for part in parts)), levels=matrices[0].levels)

    def centred(self) -> QuantizedMatrix:
        """The same without offsets, if these only take off what codes are stored with added."""
        if self.offset_OG is None:
            return self
        taken_off = torch.equal(self.offset_OG, self.scale_OG * -middle_of(self.bits))
        return QuantizedMatrix(self.codes_OC, self.scale_OG) if taken_off else self

    def without_levels(self) -> QuantizedMatrix:
        """The same weights by codes that stand for themselves: of 5 bits, or of 8 where levels are too far apart."""
        if self.levels is None:
            return self
        middle = middle_of(5)
        bits = 5 if -middle <= min(self.levels) and max(self.levels) < middle else 8
        codes_OGK = self._looked_up(torch.int8).add_(middle_of(bits))
        return QuantizedMatrix(packed_codes(codes_OGK, bits), self.scale_OG)

    def _in(self, bits: int, offsets: bool) -> QuantizedMatrix:
        """The same weights in more bits, of a matrix in 4 or 5, or in as many; maybe with ``offsets``."""
        if (bits, offsets) == (self.bits, self.offset_OG is not None):
            return self
        added = self.offset_OG
        codes_OGK = self.codes()
        if bits == 8:
            added = torch.zeros_like(self.scale_OG) if added is None else added
        elif offsets and added is None:
            codes_OGK += middle_of(self.bits)
            added = self.scale_OG * -middle_of(self.bits)
        elif not offsets:
            codes_OGK += middle_of(bits)
        each = scales_of_group(bits) // scales_of_group(self.bits)
        factors = [part.repeat_interleave(each, 1) for part in (self.scale_OG, added) if part is not None]
        return QuantizedMatrix(packed_codes(codes_OGK.to(torch.int8), bits), *factors[: 1 + offsets])

    def parts(self) -> tuple[torch.Tensor, ...]:
        """Codes and scales, and offsets if there are any."""
        return (self.codes_OC, self.scale_OG, *(() if self.offset_OG is None else (self.offset_OG,)))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedMatrix:
        return replace(QuantizedMatrix(*(change(part) for part in self.parts())), levels=self.levels)

    def codes(self) -> torch.Tensor:
        """The codes [O, G, K], or the levels that they stand for, as new float32."""
        if self.levels is not None:
            return self._looked_up(torch.float32)
        groups_OGC = self.codes_OC.view(self.outputs, -1, bytes_of_group(self.bits))
        if self.bits == 8:
            return groups_OGC.to(torch.float32, copy=True)
        codes_OGK = torch.empty(*groups_OGC.shape[:2], GROUP, device=self.device)
        halves_OGK = groups_OGC[..., : GROUP // 2]
        codes_OGK[..., : GROUP // 2] = halves_OGK & 15
        codes_OGK[..., GROUP // 2 :] = halves_OGK >> 4
        upper_OGC = groups_OGC[..., GROUP // 2 :]
        if self.bits == 5:
            codes_OGK += torch.stack([upper_OGC >> bit & 1 for bit in range(8)], 3).flatten(2) * 16.0
        if self.bits == 6:
            codes_OGK += torch.cat([upper_OGC >> 2 * field & 3 for field in range(4)], 2) * 16.0
        return codes_OGK if self.offset_OG is not None else codes_OGK.sub_(middle_of(self.bits))

    def _looked_up(self, dtype: torch.dtype) -> torch.Tensor:
        """The levels [O, G, K] that codes stand for; some rows at a time, as their places take four bytes each."""
        assert self.levels is not None
        table = numbers_on(self.device, self.levels, dtype)
        level_OGK = torch.empty(self.outputs, self.inputs // GROUP, GROUP, dtype=dtype, device=self.device)
        step = max(1, _LOOKED_UP // max(1, self.inputs))
        for first in range(0, self.outputs, step):
            rows = slice(first, first + step)
            byte_RGC = self.codes_OC[rows].reshape(-1, self.inputs // GROUP, GROUP // 2)
            level_OGK[rows, :, : GROUP // 2] = table[(byte_RGC & 15).int()]
            level_OGK[rows, :, GROUP // 2 :] = table[(byte_RGC >> 4).int()]
        return level_OGK


def are_levels(levels: Sequence[int]) -> bool:
    """Whether codes of 4 bits can stand for them."""
    return len(levels) == 16 and all(-128 <= level < 128 for level in levels)


def bits_of(signed: bool, bytes_of_row: int, scales_of_row: int) -> int | None:
    """Of codes that take so many bytes of a row: 8 if they have a sign, else what fits the scales, or None."""
    fitting = (b for b in BITS if bytes_of_row * scales_of_group(b) == scales_of_row * bytes_of_group(b))
    return 8 if signed else next((b for b in fitting if b < 8), None)


def packed_codes(codes_OGK: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of so many bits, int8 [O, G, K] as they are stored, as a :class:`QuantizedMatrix` has them."""
    if bits == 8:
        return codes_OGK.flatten(1)
    stored_OGK = codes_OGK.view(torch.uint8)
    low_OGH, high_OGH = (stored_OGK & 15).chunk(2, 2)
    lower_OGH, upper_OGK = low_OGH | high_OGH << 4, stored_OGK >> 4
    if bits == 4:
        return lower_OGH.flatten(1)
    # neighbours share a byte, or every eighth code
    parts = [upper_OGK[..., bit::8] for bit in range(8)] if bits == 5 else upper_OGK.chunk(4, 2)
    upper_OGC = torch.zeros_like(parts[0])
    for number, part in enumerate(parts):
        upper_OGC |= part << number * (bits - 4)
    return torch.cat([lower_OGH, upper_OGC], 2).flatten(1)
