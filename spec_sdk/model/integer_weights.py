"""Matrices of 4 or 8 bits as GPTQ, AWQ and compressed-tensors store them, read as codes, scales and offsets of ours.

A weight is scale · (code - zero point), and some 32 · n inputs of an output share a scale and a zero point. Codes of b
bits lie in an int32 as 0 … 2^b - 1, P = 32 / b of them, the first in its lowest bits (AWQ: in an order of its own):

- GPTQ (Frantar et al., 2022): ``qweight`` [I/P, O], ``scales`` [G, O], ``qzeros`` [G, O/P], in its first format less
  one.
- AWQ (Lin et al., 2023): ``qweight`` [I, O/P], ``scales`` [G, O], ``qzeros`` [G, O/P].
- compressed-tensors, ``pack-quantized``: ``weight_packed`` [O, I/P], ``weight_scale`` [O, G], maybe
  ``weight_zero_point`` [O/P, G]; without these, zero points are 2^(b - 1).
- compressed-tensors, ``int-quantized``: ``weight`` int8 [O, I], ``weight_scale`` [O, G], maybe ``weight_zero_point``
  int8 [O, G].

Inputs that share a scale are neighbours; where ``g_idx`` [I] or ``weight_g_idx`` says otherwise (GPTQ's ``desc_act``) a
matrix is expanded, as is one whose scales are far from what float16 holds.

Legend: O outputs, R some of them, I inputs, G groups of inputs, X anything, P int32 of several codes, N codes of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.quantization_config import weights_of_groups
from spec_sdk.model.safetensors_reader import TensorFiles
from spec_sdk.model.stored_matrices import CODES, OFFSET, SCALE
from spec_sdk.ops.quantized import GROUP, bytes_of_group, packed_codes

AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in an int32 of AWQ's the first code lies, the second …"""
SIGN = 128
"""What 8-bit codes without a sign have more than those with one."""


class IntegerLayout(ABC):
    """How one format stores a matrix of ``bits``, by the endings of its tensors' names: ``packed`` codes, of a
    ``stored`` safetensors dtype, ``scales``, ``zeros``, which a matrix must have if they are ``asked_for``, the
    ``order`` of its inputs, if it has one, and what ``more`` there may be.
    """

    packed: str
    scales: str
    zeros: str
    stored = "I32"
    asked_for = True
    order: str
    more: Sequence[str] = ()

    def __init__(self, bits: int) -> None:
        self.bits = bits

    @property
    def in_word(self) -> int:
        """Codes in an int32."""
        return 32 // self.bits

    @abstractmethod
    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        """Outputs, inputs and groups. Raises UserError for tensors that do not fit each other."""

    @abstractmethod
    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        """uint8 [R, I], 0 … 2^bits - 1."""

    @abstractmethod
    def scale_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        """float32 [R, G]."""

    @abstractmethod
    def stored_zero_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        """The codes that mean zero, float32 [R, G], of matrices that have ``zeros``."""

    def zero_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        """The same of all, one number where there are none: half of the codes are below it."""
        if stem + self.zeros in files.shapes:
            return self.stored_zero_RG(files, stem, outputs)
        return torch.full((1, 1), float(1 << (self.bits - 1)))

    def group_I(self, files: TensorFiles, stem: str, inputs: int, groups: int) -> torch.Tensor | None:
        """The group of each input; None where these are in order."""
        name = stem + self.order
        if name not in files.shapes:
            return None
        group_I = files.tensor(name).long()
        # what was never set says nothing
        if group_I.shape == (inputs,) and (group_I == -1).all():
            return None
        if group_I.shape != (inputs,) or not ((group_I >= 0) & (group_I < groups)).all():
            raise self.misfit(files, stem, self.order)
        return None if torch.equal(group_I, torch.arange(inputs) // (inputs // groups)) else group_I

    def misfit(self, files: TensorFiles, stem: str, ending: str) -> UserError:
        return UserError(f"{files.where}: '{stem}{ending}' does not fit '{stem}{self.packed}'")


class _ByInputs(IntegerLayout):
    """GPTQ and AWQ: a column for each output."""

    packed, scales, zeros, order = ".qweight", ".scales", ".qzeros", ".g_idx"

    def __init__(self, bits: int, order: Sequence[int] | None = None, above: int = 0) -> None:
        super().__init__(bits)
        self._order, self._above = [*(order or range(self.in_word))], above

    def scale_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return files.tensor(stem + self.scales)[:, outputs.start : outputs.stop].T.float()

    def stored_zero_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        zero_GR = self._along_outputs(files.tensor(stem + self.zeros), outputs).add_(self._above)
        return (zero_GR & (1 << self.bits) - 1).T.float()

    def _along_outputs(self, packed_XP: torch.Tensor, outputs: range) -> torch.Tensor:
        """Codes uint8 [X, R] of numbers that are packed along the outputs."""
        first = outputs.start // self.in_word
        code_XPN = unpacked(packed_XP[:, first : -(-outputs.stop // self.in_word)], self.bits)[:, :, self._order]
        begin = outputs.start - first * self.in_word
        return code_XPN.flatten(1)[:, begin : begin + len(outputs)]

    def _checked(self, files: TensorFiles, stem: str, outputs: int, inputs: int) -> tuple[int, int, int]:
        groups = files.shape(stem + self.scales)[0]
        expected = {self.scales: (groups, outputs), self.zeros: (groups, -(-outputs // self.in_word))}
        for ending, shape in expected.items():
            if files.shape(stem + ending) != shape:
                raise self.misfit(files, stem, ending)
        return outputs, inputs, groups


class Gptq(_ByInputs):
    """``above``: what is added to its zero points, 1 in its first format."""

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        packed, outputs = files.shape(stem + self.packed)
        return self._checked(files, stem, outputs, packed * self.in_word)

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        code_PRN = unpacked(files.tensor(stem + self.packed)[:, outputs.start : outputs.stop], self.bits)
        return code_PRN.transpose(0, 1).flatten(1)


class Awq(_ByInputs):
    """Its version ``gemm``, of 4 bits."""

    def __init__(self) -> None:
        super().__init__(4, AWQ_ORDER)

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        inputs, packed = files.shape(stem + self.packed)
        return self._checked(files, stem, packed * self.in_word, inputs)

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return self._along_outputs(files.tensor(stem + self.packed), outputs).T


class _CompressedTensors(IntegerLayout):
    """A row for each output."""

    scales, zeros, order = ".weight_scale", ".weight_zero_point", ".weight_g_idx"
    more = (".weight_shape", ".input_scale", ".input_zero_point")

    def __init__(self, bits: int, symmetric: bool) -> None:
        super().__init__(bits)
        self.asked_for = not symmetric

    def scale_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return files.tensor(stem + self.scales)[outputs.start : outputs.stop].float()

    def _checked(self, files: TensorFiles, stem: str, inputs: int, rows_of_zeros: int) -> tuple[int, int, int]:
        outputs, scales = files.shape(stem + self.packed)[0], files.shape(stem + self.scales)
        if scales[0] != outputs:
            raise self.misfit(files, stem, self.scales)
        if files.shapes.get(stem + self.zeros, (rows_of_zeros, scales[1])) != (rows_of_zeros, scales[1]):
            raise self.misfit(files, stem, self.zeros)
        return outputs, inputs, scales[1]


class PackQuantized(_CompressedTensors):
    """Its format ``pack-quantized``."""

    packed = ".weight_packed"

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        outputs, packed = files.shape(stem + self.packed)
        return self._checked(files, stem, packed * self.in_word, -(-outputs // self.in_word))

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return unpacked(files.tensor(stem + self.packed)[outputs.start : outputs.stop], self.bits).flatten(1)

    def stored_zero_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        zero_PGN = unpacked(files.tensor(stem + self.zeros), self.bits)
        return zero_PGN.transpose(1, 2).flatten(0, 1)[outputs.start : outputs.stop].float()


class IntQuantized(_CompressedTensors):
    """Its format ``int-quantized``, of 8 bits."""

    packed, stored = ".weight", "I8"

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        outputs, inputs = files.shape(stem + self.packed)
        return self._checked(files, stem, inputs, outputs)

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return files.tensor(stem + self.packed)[outputs.start : outputs.stop].view(torch.uint8) ^ SIGN

    def stored_zero_RG(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return files.tensor(stem + self.zeros)[outputs.start : outputs.stop].float() + SIGN


def integer_layout(quantization: Mapping[str, Any]) -> IntegerLayout | None:
    """Of config.json's ``quantization_config``; None where weights are not integers of a form that is read."""
    method = quantization.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(quantization)
    bits = quantization.get("bits", quantization.get("w_bit"))
    if method == "gptq" and bits in (4, 8):
        return Gptq(int(bits), above=0 if quantization.get("checkpoint_format") == "gptq_v2" else 1)
    gemm = str(quantization.get("version", "gemm")).lower() == "gemm"
    return Awq() if method == "awq" and bits == 4 and gemm else None


def _compressed_tensors(quantization: Mapping[str, Any]) -> IntegerLayout | None:
    weights, form = weights_of_groups(quantization), quantization.get("format")
    # groups of both kinds would not say of which a matrix is
    symmetric = any(said.get("symmetric", True) for said in weights)
    for bits in (4, 8):
        if weights and all((said.get("type"), said.get("num_bits")) == ("int", bits) for said in weights):
            if form == "pack-quantized":
                return PackQuantized(bits, symmetric)
            if bits == 8 and form in ("int-quantized", "naive-quantized"):
                return IntQuantized(bits, symmetric)
    return None


class IntegerWeights:
    """The tensors of ``files``, matrices of 4 or 8 bits among them as codes, scales and maybe offsets
    (:mod:`spec_sdk.model.stored_matrices`), or expanded to float32.

    Offsets, and scales that are not float16, are rounded to float16. Raises UserError for a matrix whose tensors do not
    fit each other, or whose groups are not whole ones of 32 inputs.
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


def unpacked(packed_XP: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes of 4 or 8 bits of each int32, uint8 [X, P, N], the lowest bits first."""
    byte_XPB = packed_XP.contiguous()[..., None].view(torch.uint8)
    return byte_XPB if bits == 8 else torch.stack((byte_XPB & 15, byte_XPB >> 4), -1).flatten(-2)


def as_stored(code_RI: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes without a sign, uint8 [R, I], as a :class:`~spec_sdk.ops.quantized.QuantizedMatrix` has them."""
    if bits == 8:
        return (code_RI ^ SIGN).view(torch.int8)
    return packed_codes(code_RI.reshape(len(code_RI), code_RI.shape[1] // GROUP, GROUP).view(torch.int8), bits)
