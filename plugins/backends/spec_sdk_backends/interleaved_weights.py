"""Weights in few bits as :mod:`spec_sdk_backends.interleaved_kernels` reads them: a tile of words becomes tiles of
weights by shifts and masks, and nothing is moved between threads.

Inputs are in blocks. A block of a row is neighbouring words of 32 bits, one for each input of a group that shares a
scale. Number w of them holds the codes of input w of every group of the block, one above the other: group p has
*place* p. So the same place of neighbouring words is a group, in order.

Legend: O outputs, I inputs, B blocks of a row, W words of a block, P places of a word, F words of factors of a block,
R rows that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.ops.quantized import GROUP, QuantizedMatrix, QuantizedWeights, middle_of, packed_codes, scales_of_group
from spec_sdk_backends.interleaved_kernels import expand_kernel

MOST_AT_ONCE = 1 << 24
"""Weights that are brought into this form, or out of it, at a time: what lies beside them meanwhile takes 16 bytes
each.
"""


@dataclass(frozen=True)
class Interleaving:
    """How codes of so many ``bits`` lie."""

    bits: int

    @property
    def places(self) -> int:
        return 4 if self.bits == 8 else 8

    @property
    def width(self) -> int:
        """Bits of a place; those of a code that are beyond it lie apart."""
        return 8 if self.bits == 8 else 4

    @property
    def words(self) -> int:
        """Of a block: as many as inputs share a scale."""
        return GROUP // scales_of_group(self.bits)

    @property
    def inputs(self) -> int:
        """Of a block."""
        return self.places * self.words

    @property
    def upper(self) -> torch.dtype | None:
        """What holds, for each word, the bits of its codes that are beyond their places."""
        return {5: torch.uint8, 6: torch.int16}.get(self.bits)

    @property
    def middle(self) -> int:
        """What is added to codes so that none is below 0."""
        return 128 if self.bits == 8 else middle_of(self.bits)

    def blocks(self, inputs: int) -> int:
        """Of a row; the last is filled up with weights of 0."""
        return -(-inputs // self.inputs)


@dataclass(frozen=True, eq=False)
class InterleavedWeights(QuantizedWeights):
    """``word``: int32 [O·B·W + upper + B·F·O], three parts one behind the other: words [O, B, W]; of 5 and 6 bits what
    is beyond 4 bits of a word's codes, [O, B, W] of 8 or 16 bits; and factors [B, F, O], pairs of float16, the first in
    the lower half: scale and offset of a place with ``offsets`` (F = P), else the scales of two (F = P / 2).
    """

    word: torch.Tensor
    shape: tuple[int, int]
    form: Interleaving
    offsets: bool

    @staticmethod
    def of(matrix: QuantizedMatrix) -> InterleavedWeights:
        """The same weights, where ``matrix`` lies. Without it, one may forget the matrix."""
        matrix = matrix.without_levels()
        form, shape = Interleaving(matrix.bits), (matrix.outputs, matrix.inputs)
        blocks, offsets = form.blocks(matrix.inputs), matrix.offset_OG is not None
        made = InterleavedWeights(
            torch.empty(sum(_sizes(form, shape, offsets)), dtype=torch.int32, device=matrix.device),
            shape,
            form,
            offsets,
        )
        word_OBW, upper_OBW, factor_BFO = made._parts()
        filled = blocks * form.inputs - matrix.inputs
        step = max(1, MOST_AT_ONCE // matrix.inputs)
        for first in range(0, matrix.outputs, step):
            rows = slice(first, first + step)
            part = matrix.rows(rows)
            code_OI = part.codes().flatten(1).to(torch.int32)
            # beside offsets codes of fewer than 8 bits are not centered
            code_OI += 0 if offsets and form.bits < 8 else form.middle
            code_OBPW = torch.nn.functional.pad(code_OI, (0, filled)).view(-1, blocks, form.places, form.words)
            placed_OBPW = (code_OBPW & (1 << form.width) - 1) << _shifts(form.width, form.places, code_OI.device)
            word_OBW[rows] = placed_OBPW.sum(2, dtype=torch.int64).to(torch.int32)
            if upper_OBW is not None:
                beyond = form.bits - form.width
                upper_OBPW = (code_OBPW >> form.width) << _shifts(beyond, form.places, code_OI.device)
                upper_OBW[rows] = upper_OBPW.sum(2, dtype=torch.int64).to(upper_OBW.dtype)
            factor_BFO[:, :, rows] = _paired(part, form, blocks).permute(1, 2, 0)
        return made

    @property
    def bits(self) -> int:
        return self.form.bits

    @property
    def inputs(self) -> int:
        return self.shape[1]

    @property
    def outputs(self) -> int:
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        return self.word.device

    @property
    def nbytes(self) -> int:
        return self.word.nbytes

    def dequantized(self, dtype: torch.dtype, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        """As everywhere, but that a row that there is not is NaN: to raise, the host would have to wait for the GPU."""
        outputs, inputs = self.shape
        if isinstance(rows, torch.Tensor):
            first, count, row_R = 0, len(rows), rows.to(self.device).contiguous()
        else:
            first, end, step = (rows or slice(None)).indices(outputs)
            if step != 1:
                raise IndexError(f"rows {rows} are not neighbours")
            first, count, row_R = first, max(0, end - first), self.word
        out_RI = torch.empty((count, inputs), dtype=dtype, device=self.device)
        if out_RI.numel():
            blocks = self.form.blocks(inputs)
            expand_kernel[(count, blocks)](
                self.word,
                row_R,
                out_RI,
                first,
                INPUTS=inputs,
                OUTPUTS=outputs,
                CHOSEN=isinstance(rows, torch.Tensor),
                **self.constants(),
                num_warps=1,
            )
        return out_RI

    def constants(self) -> dict[str, int | bool]:
        """What says to a kernel how the weights lie."""
        return {"BITS": self.bits, "OFFSETS": self.offsets}

    def plain(self) -> QuantizedMatrix:
        step = max(1, MOST_AT_ONCE // self.inputs)
        return QuantizedMatrix.stacked([self._plain(slice(i, i + step)) for i in range(0, self.outputs, step)])

    def _plain(self, rows: slice) -> QuantizedMatrix:
        form = self.form
        word_OBW, upper_OBW, factor_BFO = self._parts()
        mask = (1 << form.width) - 1
        code_OBPW = word_OBW[rows, :, None] >> _shifts(form.width, form.places, self.device) & mask
        if upper_OBW is not None:
            beyond = form.bits - form.width
            upper_OBPW = upper_OBW[rows, :, None].to(torch.int32) >> _shifts(beyond, form.places, self.device)
            code_OBPW |= (upper_OBPW & (1 << beyond) - 1) << form.width
        code_OI = code_OBPW.flatten(1)[:, : self.inputs]
        code_OI -= form.middle if form.bits == 8 else 0
        packed_OC = packed_codes(code_OI.to(torch.int8).view(len(code_OI), -1, GROUP), form.bits)
        factor_OFH = factor_BFO[:, :, rows].permute(2, 0, 1).contiguous().view(torch.float16).view(len(code_OI), -1, 2)
        count = self.inputs // form.words
        if self.offsets:
            return QuantizedMatrix(packed_OC, *(part[:, :count].contiguous() for part in factor_OFH.unbind(2)))
        return QuantizedMatrix(packed_OC, factor_OFH.flatten(1)[:, :count].contiguous())

    def _parts(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Words, what is beyond their places, and factors: views."""
        outputs, inputs = self.shape
        blocks = self.form.blocks(inputs)
        of_words, of_upper, of_factors = _sizes(self.form, self.shape, self.offsets)
        word, upper, factor = torch.split(self.word, [of_words, of_upper, of_factors])
        like = (outputs, blocks, self.form.words)
        beyond = None if self.form.upper is None else upper.view(self.form.upper).view(like)
        return word.view(like), beyond, factor.view(blocks, -1, outputs)


def _sizes(form: Interleaving, shape: tuple[int, int], offsets: bool) -> tuple[int, int, int]:
    """Words of the three parts."""
    outputs, blocks = shape[0], form.blocks(shape[1])
    of_words = outputs * blocks * form.words
    of_upper = 0 if form.upper is None else of_words * form.upper.itemsize // 4
    return of_words, of_upper, blocks * outputs * (form.places if offsets else form.places // 2)


def _shifts(width: int, places: int, device: torch.device) -> torch.Tensor:
    """How far up each place is, [P, 1]."""
    return torch.arange(0, width * places, width, dtype=torch.int32, device=device)[:, None]


def _paired(matrix: QuantizedMatrix, form: Interleaving, blocks: int) -> torch.Tensor:
    """Factors [O, B, F] of some rows."""
    filled = blocks * form.places - matrix.scale_OG.shape[1]
    parts = (matrix.scale_OG,) if matrix.offset_OG is None else (matrix.scale_OG, matrix.offset_OG)
    factor_OSH = torch.stack([torch.nn.functional.pad(part, (0, filled)) for part in parts], 2)
    return factor_OSH.flatten(1).view(torch.int32).view(len(factor_OSH), blocks, -1)
