"""How GPTQ, AWQ and compressed-tensors store matrices of 4 or 8 bits.

A weight is scale · (code - zero point), and some 32 · n inputs of an output share a scale and a zero point. Codes of b
bits lie in an int32 as 0 … 2^b - 1, P = 32 / b of them, the first in its lowest bits (AWQ: in an order of its own):

- GPTQ (Frantar et al., 2022): ``qweight`` [I/P, O], ``scales`` [G, O], ``qzeros`` [G, O/P], in its first format less
  one.
- AWQ (Lin et al., 2023): ``qweight`` [I, O/P], ``scales`` [G, O], ``qzeros`` [G, O/P].
- compressed-tensors, ``pack-quantized``: ``weight_packed`` [O, I/P], ``weight_scale`` [O, G], maybe
  ``weight_zero_point`` [O/P, G]; without these, zero points are 2^(b - 1).
- compressed-tensors, ``int-quantized``: ``weight`` int8 [O, I], ``weight_scale`` [O, G], maybe ``weight_zero_point``
  int8 [O, G].

Inputs that share a scale are neighbours, unless ``g_idx`` [I] or ``weight_g_idx`` says otherwise (GPTQ's ``desc_act``).

Legend: O outputs, R some of them, I inputs, G groups of inputs, X anything, P int32 of several codes, N codes of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.quantization_config import weights_of_groups
from spec_sdk.model.safetensors_reader import TensorFiles

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


def unpacked(packed_XP: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes of 4 or 8 bits of each int32, uint8 [X, P, N], the lowest bits first."""
    byte_XPB = packed_XP.contiguous()[..., None].view(torch.uint8)
    return byte_XPB if bits == 8 else torch.stack((byte_XPB & 15, byte_XPB >> 4), -1).flatten(-2)
