"""Matrices of weights in few bits.

Legend: O outputs, I inputs, C bytes of codes in a row, G groups of a row, K inputs of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

GROUP = 32
"""Neighbouring inputs of a row that share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0."""


class QuantizedWeights(ABC):
    """Weights [O, I] in few bits, in whatever layout a backend multiplies fastest."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of a code: 4 or 8."""

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
    """Weights [O, I] = scale · code + offset, scale and offset of each group of 32 inputs.

    ``codes_OC``: int8 [O, I], or uint8 [O, I / 2] of codes 0 … 15: byte j of a group's 16 holds code j in its low half
    and code j + 16 in its high half, as in GGUF files. ``scale_OG`` [O, I / 32] float16. ``offset_OG``: the same, or
    None for none. Raises ValueError for parts that do not fit each other.
    """

    codes_OC: torch.Tensor
    scale_OG: torch.Tensor
    offset_OG: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.codes_OC.dtype not in (torch.int8, torch.uint8):
            raise ValueError(f"codes are {self.codes_OC.dtype}, neither int8 nor uint8")
        groups = self.inputs // GROUP
        expected = (self.codes_OC.shape[0], groups)
        for part in (self.scale_OG, self.offset_OG):
            if part is not None and (part.shape != expected or part.dtype != torch.float16):
                raise ValueError(f"scales {tuple(part.shape)} {part.dtype} do not fit codes {expected}")
        if self.inputs % GROUP:
            raise ValueError(f"{self.inputs} inputs are not whole groups of {GROUP}")

    @property
    def bits(self) -> int:
        return 4 if self.codes_OC.dtype == torch.uint8 else 8

    @property
    def inputs(self) -> int:
        return self.codes_OC.shape[1] * (8 // self.bits)

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
        w_OGK = self._codes().mul_(self.scale_OG.float()[..., None])
        if self.offset_OG is not None:
            w_OGK.add_(self.offset_OG.float()[..., None])
        return w_OGK.view(self.outputs, self.inputs).to(dtype)

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

    def like(self, other: QuantizedMatrix) -> bool:
        """Whether the two have codes of the same kind, so that one can stand below the other."""
        same_parts = (self.offset_OG is None) == (other.offset_OG is None)
        return same_parts and (self.bits, self.inputs) == (other.bits, other.inputs)

    @staticmethod
    def below(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
        """One below the other; they are all :meth:`like` the first."""
        if len(matrices) == 1:
            return matrices[0]
        offsets = [matrix.offset_OG for matrix in matrices if matrix.offset_OG is not None]
        return QuantizedMatrix(
            torch.cat([matrix.codes_OC for matrix in matrices]),
            torch.cat([matrix.scale_OG for matrix in matrices]),
            torch.cat(offsets) if offsets else None,
        )

    def _parts(self) -> tuple[torch.Tensor, ...]:
        return (self.codes_OC, self.scale_OG, *(() if self.offset_OG is None else (self.offset_OG,)))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedMatrix:
        return QuantizedMatrix(*(change(part) for part in self._parts()))

    def _codes(self) -> torch.Tensor:
        """The codes [O, G, K] as new float32."""
        if self.bits == 8:
            return self.codes_OC.view(self.outputs, -1, GROUP).to(torch.float32, copy=True)
        halves_OGK = self.codes_OC.view(self.outputs, -1, GROUP // 2)
        codes_OGK = torch.empty(*halves_OGK.shape[:2], GROUP, device=self.device)
        codes_OGK[..., : GROUP // 2] = halves_OGK & 15
        codes_OGK[..., GROUP // 2 :] = halves_OGK >> 4
        return codes_OGK
