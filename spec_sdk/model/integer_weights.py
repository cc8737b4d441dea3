"""Matrices of 4 or 8 bits in other programs' formats (:mod:`spec_sdk.model.integer_layouts`), read as codes, scales and
offsets of ours.

Legend: O outputs, R some of them, I inputs, G groups of inputs, C columns of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.integer_layouts import SIGN, IntegerLayout
from spec_sdk.model.safetensors_reader import TensorFiles
from spec_sdk.model.stored_matrices import CODES, OFFSET, SCALE
from spec_sdk.ops.quantized import GROUP, bytes_of_group, packed_codes


class IntegerWeights:
    """The tensors of ``files``, matrices of 4 or 8 bits among them as codes, scales and maybe offsets
    (:mod:`spec_sdk.model.stored_matrices`).

    Offsets and scales are rounded to float16. Where that changes them by more than a little, and where inputs are out
    of order, a matrix is expanded to float32. Raises UserError for a matrix whose tensors do not fit each other, or
    whose groups are not whole ones of 32 inputs.
    """

    def __init__(self, files: TensorFiles, layout: IntegerLayout | None) -> None:
        self._files, self._layout = files, layout
        self.where = files.where
        shapes = dict(files.shapes)
        # by a tensor's name the matrix it is of, and how many groups of 32 inputs share a scale
        self._matrices: dict[str, tuple[str, int]] = {}
        # of those among them that are expanded
        self._group_I: dict[str, torch.Tensor] = {}
        for packed in [name for name in shapes if layout is not None and self._is_packed(layout, name)]:
            assert layout is not None
            stem = packed.removesuffix(layout.packed)
            outputs, inputs, groups = self._checked(layout, stem)
            group_I = layout.group_I(files, stem, inputs, groups)
            if group_I is None and not held_by_half(layout.scale_RG(files, stem, range(outputs)), layout.bits):
                group_I = torch.arange(inputs) // (inputs // groups)
            if group_I is not None:
                self._group_I[f"{stem}.weight"] = group_I
                widths = {"": inputs}
            else:
                widths = {CODES: inputs // GROUP * bytes_of_group(layout.bits), SCALE: inputs // GROUP}
                if stem + layout.zeros in files.shapes:
                    widths[OFFSET] = inputs // GROUP
            for ending in (layout.packed, layout.scales, layout.zeros, layout.order, *layout.more):
                shapes.pop(f"{stem}{ending}", None)
            if f"{stem}.weight" in shapes:
                raise UserError(f"{self.where}: tensor '{stem}.weight' is stored twice, once in few bits")
            for part, width in widths.items():
                self._matrices[f"{stem}.weight{part}"] = stem, inputs // groups // GROUP
                shapes[f"{stem}.weight{part}"] = outputs, width
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped, or a matrix, or a part of one. Raises KeyError for an unknown name."""
        if name not in self._matrices:
            return self._files.tensor(name)
        return self.part(name, range(self.shapes[name][0]))

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Some rows and columns of a tensor. Raises KeyError for an unknown name, UserError for a torn file."""
        if name not in self._matrices:
            return self._files.part(name, rows, columns)
        assert self._layout is not None
        files, layout = self._files, self._layout
        stem, shared = self._matrices[name]
        if name in self._group_I:
            part_RC = self._expanded(stem, rows, self._group_I[name])
        elif name.endswith(CODES):
            part_RC = as_stored(layout.codes(files, stem, rows), layout.bits)
        else:
            part_RG = layout.scale_RG(files, stem, rows)
            if name.endswith(OFFSET):
                part_RG = part_RG * ((SIGN if layout.bits == 8 else 0) - layout.zero_RG(files, stem, rows))
            part_RC = part_RG.half().repeat_interleave(shared, 1)
        return part_RC if columns is None else part_RC[:, columns.start : columns.stop].contiguous()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises KeyError for an unknown name."""
        return self.shapes[name]

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which a tensor is read. Raises KeyError for an unknown name."""
        if name not in self._matrices:
            return self._files.dtype(name)
        if name in self._group_I:
            return "F32"
        assert self._layout is not None
        codes = "I8" if self._layout.bits == 8 else "U8"
        return codes if name.endswith(CODES) else "F16"

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as neither ordinary floating point nor a matrix to expand."""
        self._files.check_floating(name for name in names if name not in self._group_I)

    def _expanded(self, stem: str, rows: range, group_I: torch.Tensor) -> torch.Tensor:
        files, layout = self._files, self._layout
        assert layout is not None
        zero_RG, scale_RG = layout.zero_RG(files, stem, rows), layout.scale_RG(files, stem, rows)
        code_RI = layout.codes(files, stem, rows).float()
        return code_RI.sub_(zero_RG.expand_as(scale_RG)[:, group_I]).mul_(scale_RG[:, group_I])

    def _is_packed(self, layout: IntegerLayout, name: str) -> bool:
        # an ending that ordinary weights have too
        ordinary = layout.packed == ".weight" and self._files.dtype(name) != layout.stored
        return name.endswith(layout.packed) and not ordinary

    def _checked(self, layout: IntegerLayout, stem: str) -> tuple[int, int, int]:
        there, where = self._files.shapes, self.where
        wanted = {layout.packed: (layout.stored,), layout.scales: ("F16", "BF16", "F32")}
        if layout.asked_for or stem + layout.zeros in there:
            wanted[layout.zeros] = (layout.stored,)
        for ending, dtypes in wanted.items():
            name = f"{stem}{ending}"
            if name not in there:
                raise UserError(f"{where}: tensor '{name}' is missing, which belongs to '{stem}{layout.packed}'")
            if self._files.dtype(name) not in dtypes or len(there[name]) != 2:
                raise UserError(f"{where}: tensor '{name}' is no matrix of {' or '.join(dtypes)}")
        outputs, inputs, groups = layout.shape(self._files, stem)
        if not groups or inputs % (groups * GROUP):
            raise UserError(f"{where}: '{stem}' has {groups} scales for {inputs} inputs: no whole groups of {GROUP}")
        return outputs, inputs, groups


def held_by_half(scale_OG: torch.Tensor, bits: int) -> bool:
    """Whether rounding scales, and offsets by so many bits, to float16 changes them by little: relative to themselves,
    or to the largest scale.
    """
    size_OG = scale_OG.abs()
    off_OG = (scale_OG.half().float() - scale_OG).abs()
    close_OG = (off_OG <= size_OG * 2**-10) | (off_OG <= size_OG.max() * 2**-14)
    return bool(close_OG.all() and size_OG.max() * (1 << bits) < torch.finfo(torch.float16).max)


def as_stored(code_RI: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes without a sign, uint8 [R, I], as a :class:`~spec_sdk.ops.quantized.QuantizedMatrix` has them."""
    if bits == 8:
        return (code_RI ^ SIGN).view(torch.int8)
    return packed_codes(code_RI.reshape(len(code_RI), code_RI.shape[1] // GROUP, GROUP).view(torch.int8), bits)
