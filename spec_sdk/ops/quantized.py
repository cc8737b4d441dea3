"""Matrices of weights in few bits.

Legend: O outputs, I inputs, C bytes of codes in a row, G groups of a row, K inputs of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 32
"""Neighbouring inputs of a row that share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0."""


@dataclass(frozen=True)
class QuantizedMatrix:
    """Weights [O, I] = scale · code + offset, scale and offset of each group of 32 inputs.

    ``codes_OC``: int8 [O, I], or uint8 [O, I / 2] of codes 0 … 15: byte j of a group's 16 holds code j in its low half
    and code j + 16 in its high half, as in GGUF files. ``scale_OG`` [O, I / 32] float16. ``offset_OG``: the same, or
    None for none. Raises ValueError for parts that do not fit each other.
    """

    codes_OC: torch.Tensor
    scale_OG: torch.Tensor
    offset_OG: torch.Tensor | None = None

    def __post_init__(self) -> None:
        groups = self.inputs // GROUP
        expected = (self.codes_OC.shape[0], groups)
        for part in (self.scale_OG, self.offset_OG):
            if part is not None and (part.shape != expected or part.dtype != torch.float16):
                raise ValueError(f"scales {tuple(part.shape)} {part.dtype} do not fit codes {expected}")
        if self.inputs % GROUP:
            raise ValueError(f"{self.inputs} inputs are not whole groups of {GROUP}")

    @property
    def bits(self) -> int:
        """Bits of a code: 4 or 8."""
        return 4 if self.codes_OC.dtype == torch.uint8 else 8

    @property
    def inputs(self) -> int:
        return self.codes_OC.shape[1] * (8 // self.bits)

    @property
    def outputs(self) -> int:
        return self.codes_OC.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes in memory, scales and offsets included."""
        parts = (self.codes_OC, self.scale_OG, *(() if self.offset_OG is None else (self.offset_OG,)))
        return sum(part.numel() * part.element_size() for part in parts)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights [O, I]: computed in float32, then rounded to ``dtype``."""
        codes_OGK = self._codes().view(self.outputs, -1, GROUP).float()
        w_OGK = codes_OGK * self.scale_OG.float()[..., None]
        if self.offset_OG is not None:
            w_OGK = w_OGK + self.offset_OG.float()[..., None]
        return w_OGK.view(self.outputs, self.inputs).to(dtype)

    def _codes(self) -> torch.Tensor:
        if self.bits == 8:
            return self.codes_OC
        halves_OGK = self.codes_OC.view(self.outputs, -1, GROUP // 2)
        return torch.cat((halves_OGK & 15, halves_OGK >> 4), dim=-1)
