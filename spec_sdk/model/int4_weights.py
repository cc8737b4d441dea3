"""Matrices of 4 bits as GPTQ, AWQ and compressed-tensors store them, read as codes, scales and offsets of ours.

A weight is scale · (code - zero point). Eight codes lie in an int32, the first in its lowest bits (AWQ: in an order of
its own), and some 32 · n inputs of an output share a scale and a zero point:

- GPTQ (Frantar et al., 2022): ``qweight`` [I/8, O], ``scales`` [G, O], ``qzeros`` [G, O/8], in its first format less
  one.
- AWQ (Lin et al., 2023): ``qweight`` [I, O/8], ``scales`` [G, O], ``qzeros`` [G, O/8].
- compressed-tensors, symmetric: ``weight_packed`` [O, I/8] with zero points of 8, ``weight_scale`` [O, G].

Legend: O outputs, R some of them, I inputs, G groups of inputs, P int32 of eight codes, N codes of one.
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
from spec_sdk.ops.quantized import GROUP, packed_codes

PACKED = 8
"""Codes in an int32."""
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in an int32 of AWQ's the first code lies, the second …"""


class Int4Layout(ABC):
    """How one format stores a matrix, by the endings of its tensors' names: ``packed`` codes, ``scales``, ``zeros`` if
    it has zero points, and what ``more`` there may be.
    """

    packed: str
    scales: str
    zeros: str | None = None
    more: Sequence[str] = ()

    @abstractmethod
    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        """Outputs, inputs and groups. Raises UserError for tensors that do not fit each other."""

    @abstractmethod
    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        """uint8 [R, I], 0 … 15."""

    @abstractmethod
    def scales_and_zeros(self, files: TensorFiles, stem: str, outputs: range) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [R, G] of each."""


class _ByInputs(Int4Layout):
    """GPTQ and AWQ: a column for each output."""

    packed, scales, zeros, more = ".qweight", ".scales", ".qzeros", (".g_idx",)

    def __init__(self, order: Sequence[int] = range(PACKED), above: int = 0) -> None:
        self._order, self._above = [*order], above

    def scales_and_zeros(self, files: TensorFiles, stem: str, outputs: range) -> tuple[torch.Tensor, torch.Tensor]:
        scale_GO, zero_GO = files.tensor(stem + ".scales"), self._along_outputs(files.tensor(stem + ".qzeros"), outputs)
        zero_GR = zero_GO.add_(self._above) & 15
        return scale_GO[:, outputs.start : outputs.stop].T.float(), zero_GR.T.float()

    def _along_outputs(self, packed_XP: torch.Tensor, outputs: range) -> torch.Tensor:
        """Codes uint8 [X, R] of numbers that are packed along the outputs."""
        first = outputs.start // PACKED
        code_XPN = unpacked(packed_XP[:, first : -(-outputs.stop // PACKED)])[:, :, self._order]
        begin = outputs.start - first * PACKED
        return code_XPN.flatten(1)[:, begin : begin + len(outputs)]

    def _checked(self, files: TensorFiles, stem: str, outputs: int, inputs: int) -> tuple[int, int, int]:
        groups = files.shape(stem + ".scales")[0]
        expected = {".scales": (groups, outputs), ".qzeros": (groups, -(-outputs // PACKED))}
        for ending, shape in expected.items():
            if files.shape(stem + ending) != shape:
                raise UserError(f"{files.where}: '{stem}{ending}' does not fit '{stem}{self.packed}'")
        if stem + ".g_idx" in files.shapes:
            group_I = files.tensor(stem + ".g_idx")
            if not torch.equal(group_I.long(), torch.arange(inputs) // (inputs // groups)):
                raise UserError(
                    f"{files.where}: '{stem}' has its inputs out of order (desc_act), which is not supported"
                )
        return outputs, inputs, groups


class Gptq(_ByInputs):
    """``above``: what is added to its zero points, 1 in its first format."""

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        packed, outputs = files.shape(stem + self.packed)
        return self._checked(files, stem, outputs, packed * PACKED)

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        code_PRN = unpacked(files.tensor(stem + self.packed)[:, outputs.start : outputs.stop])
        return code_PRN.transpose(0, 1).flatten(1)


class Awq(_ByInputs):
    """Its version ``gemm``."""

    def __init__(self) -> None:
        super().__init__(AWQ_ORDER)

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        inputs, packed = files.shape(stem + self.packed)
        return self._checked(files, stem, packed * PACKED, inputs)

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return self._along_outputs(files.tensor(stem + self.packed), outputs).T


class CompressedTensors(Int4Layout):
    """Its format ``pack-quantized``, symmetric."""

    packed, scales, more = ".weight_packed", ".weight_scale", (".weight_shape",)

    def shape(self, files: TensorFiles, stem: str) -> tuple[int, int, int]:
        outputs, packed = files.shape(stem + self.packed)
        scales = files.shape(stem + self.scales)
        if len(scales) != 2 or scales[0] != outputs:
            raise UserError(f"{files.where}: '{stem}{self.scales}' does not fit '{stem}{self.packed}'")
        if stem + ".weight_zero_point" in files.shapes or stem + ".weight_g_idx" in files.shapes:
            raise UserError(f"{files.where}: '{stem}' has zero points or inputs out of order, which is not supported")
        return outputs, packed * PACKED, scales[1]

    def codes(self, files: TensorFiles, stem: str, outputs: range) -> torch.Tensor:
        return unpacked(files.tensor(stem + self.packed)[outputs.start : outputs.stop]).flatten(1)

    def scales_and_zeros(self, files: TensorFiles, stem: str, outputs: range) -> tuple[torch.Tensor, torch.Tensor]:
        scale_RG = files.tensor(stem + self.scales)[outputs.start : outputs.stop].float()
        return scale_RG, torch.full_like(scale_RG, 8)


def int4_layout(quantization: Mapping[str, Any]) -> Int4Layout | None:
    """Of config.json's ``quantization_config``; None where weights are not in 4 bits of a form that is read."""
    method = quantization.get("quant_method")
    if method == "compressed-tensors":
        weights = weights_of_groups(quantization)
        packed = quantization.get("format") == "pack-quantized" and all(map(_is_symmetric_int4, weights))
        return CompressedTensors() if packed and weights else None
    if quantization.get("bits", quantization.get("w_bit")) != 4:
        return None
    if method == "gptq":
        return Gptq(above=0 if quantization.get("checkpoint_format") == "gptq_v2" else 1)
    return Awq() if method == "awq" and str(quantization.get("version", "gemm")).lower() == "gemm" else None


def _is_symmetric_int4(weights: Mapping[str, Any]) -> bool:
    return (weights.get("num_bits"), weights.get("type")) == (4, "int") and bool(weights.get("symmetric", True))


class Int4Weights:
    """The tensors of ``files``, matrices of 4 bits among them as codes, scales and offsets
    (:mod:`spec_sdk.model.stored_matrices`).

    Offsets, and scales in bfloat16, are rounded to float16; a zero point of 8 loses nothing by that. Raises UserError
    for a matrix whose tensors do not fit each other, or whose groups are not whole ones of 32 inputs.
    """

    def __init__(self, files: TensorFiles, layout: Int4Layout | None) -> None:
        self._files, self._layout = files, layout
        self.where = files.where
        shapes = dict(files.shapes)
        self._matrices: dict[str, tuple[str, tuple[int, int, int]]] = {}
        for packed in [name for name in shapes if layout is not None and name.endswith(layout.packed)]:
            assert layout is not None
            stem = packed.removesuffix(layout.packed)
            outputs, inputs, groups = self._checked(layout, stem)
            for part, width in ((CODES, inputs // 2), (SCALE, inputs // GROUP), (OFFSET, inputs // GROUP)):
                self._matrices[f"{stem}.weight{part}"] = stem, (outputs, inputs, groups)
                shapes[f"{stem}.weight{part}"] = outputs, width
            for ending in (layout.packed, layout.scales, layout.zeros, *layout.more):
                shapes.pop(f"{stem}{ending}", None)
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped, or a part of a matrix. Raises KeyError for an unknown name."""
        if name not in self._matrices:
            return self._files.tensor(name)
        return self.part(name, range(self.shapes[name][0]))

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Some rows and columns of a tensor. Raises KeyError for an unknown name, UserError for a torn file."""
        if name not in self._matrices:
            return self._files.part(name, rows, columns)
        assert self._layout is not None
        stem, (_, inputs, groups) = self._matrices[name]
        if name.endswith(CODES):
            part_RC = in_bytes(self._layout.codes(self._files, stem, rows))
        else:
            scale_RG, zero_RG = self._layout.scales_and_zeros(self._files, stem, rows)
            of_group_RG = scale_RG if name.endswith(SCALE) else -(scale_RG * zero_RG)
            part_RC = of_group_RG.half().repeat_interleave(inputs // groups // GROUP, 1)
        return part_RC if columns is None else part_RC[:, columns.start : columns.stop].contiguous()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises KeyError for an unknown name."""
        return self.shapes[name]

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which a tensor is read. Raises KeyError for an unknown name."""
        if name not in self._matrices:
            return self._files.dtype(name)
        return "U8" if name.endswith(CODES) else "F16"

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is not stored as ordinary floating point."""
        self._files.check_floating(names)

    def _checked(self, layout: Int4Layout, stem: str) -> tuple[int, int, int]:
        there, where = self._files.shapes, self.where
        wanted = {layout.packed: ("I32",), layout.scales: ("F16", "BF16")} | (
            {layout.zeros: ("I32",)} if layout.zeros else {}
        )
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


def unpacked(packed_XP: torch.Tensor) -> torch.Tensor:
    """The eight codes of each int32, uint8 [X, P, 8], the lowest bits first."""
    byte_XPB = packed_XP.contiguous()[..., None].view(torch.uint8)
    return torch.stack((byte_XPB & 15, byte_XPB >> 4), -1).flatten(-2)


def in_bytes(code_RI: torch.Tensor) -> torch.Tensor:
    """Two codes in a byte, uint8 [R, I/2], as a :class:`~spec_sdk.ops.quantized.QuantizedMatrix` has them."""
    return packed_codes(code_RI.view(len(code_RI), code_RI.shape[1] // GROUP, GROUP), 4)
