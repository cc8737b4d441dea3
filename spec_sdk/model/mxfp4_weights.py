"""Experts in MXFP4 as gpt-oss's checkpoints have them, read as codes, scales and levels of ours.

All experts of a layer are ``NAME_blocks`` uint8 [E, O, G, 16] and ``NAME_scales`` uint8 [E, O, G]. A byte of a block
has two neighbouring inputs, the first in its lower half. Rows of gates and units take turns.

Legend: E experts, O outputs, R some of them, I inputs, G groups of 32 inputs, C columns, K inputs of a group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.mxfp4 import FLOAT4, half_of_powers
from spec_sdk.model.safetensors_reader import TensorFiles
from spec_sdk.model.stored_matrices import CODES, LEVELS, SCALE
from spec_sdk.ops.quantized import GROUP, bytes_of_group

_BLOCKS, _SCALES = "_blocks", "_scales"
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_STORED = re.compile(rf"(?P<experts>.+\.experts)\.(?P<role>{'|'.join(_PARTS)}){_BLOCKS}")
_DTYPES = {CODES: "U8", SCALE: "F16", LEVELS: "I8"}


def is_mxfp4(quantization: Mapping[str, Any]) -> bool:
    """Whether config.json's ``quantization_config`` speaks of weights in MXFP4."""
    return quantization.get("quant_method") == "mxfp4"


@dataclass(frozen=True)
class _Rows:
    """Every ``step``-th row from number ``first`` on of what ``stored``_blocks and _scales have: one expert's."""

    stored: str
    first: int
    step: int
    part: str


class Mxfp4Weights:
    """The tensors of ``files``, each matrix of an expert among them as codes, scales and levels
    (:mod:`spec_sdk.model.stored_matrices`).

    Scales are powers of two, read as float16: less than 2^-24 is 0. Raises UserError for blocks whose scales are not
    there or do not fit them.
    """

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        self.where = files.where
        shapes = dict(files.shapes)
        self._rows: dict[str, _Rows] = {}
        for name, found in [(name, found) for name in shapes if (found := _STORED.fullmatch(name))]:
            stored, of = name.removesuffix(_BLOCKS), _PARTS[found["role"]]
            experts, outputs, groups = self._checked(stored, len(of))
            for blocks in (name, stored + _SCALES):
                del shapes[blocks]
            widths = {CODES: groups * bytes_of_group(4), SCALE: groups}
            for expert in range(experts):
                for number, role in enumerate(of):
                    matrix, first = f"{found['experts']}.{expert}.{role}.weight", expert * outputs + number
                    for part, width in widths.items():
                        self._rows[matrix + part] = _Rows(stored, first, len(of), part)
                        shapes[matrix + part] = outputs // len(of), width
                    self._rows[matrix + LEVELS] = _Rows(stored, first, len(of), LEVELS)
                    shapes[matrix + LEVELS] = (len(FLOAT4),)
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped, or a part of a matrix. Raises KeyError for an unknown name, UserError for
        scales that float16 does not hold.
        """
        of = self._rows.get(name)
        if of is None:
            return self._files.tensor(name)
        rows = range(self.shapes[name][0])

        def mapped(ending: str, first: int, end: int) -> torch.Tensor:
            return self._files.tensor(of.stored + ending).flatten(0, 1)[first:end]

        return self._read(name, of, rows, mapped)

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Some rows and columns of a tensor. Raises what :meth:`tensor` raises, and UserError for a torn file."""
        of = self._rows.get(name)
        if of is None:
            return self._files.part(name, rows, columns)

        def copied(ending: str, first: int, end: int) -> torch.Tensor:
            shape = self._files.shape(of.stored + ending)[2:]
            each = math.prod(shape[:-1])
            return self._files.part(of.stored + ending, range(first * each, end * each)).view(end - first, *shape)

        part_RC = self._read(name, of, rows, copied)
        return part_RC if columns is None else part_RC[:, columns.start : columns.stop]

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises KeyError for an unknown name."""
        return self.shapes[name]

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which a tensor is read. Raises KeyError for an unknown name."""
        return _DTYPES[self._rows[name].part] if name in self._rows else self._files.dtype(name)

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is not stored in ordinary floating point."""
        self._files.check_floating(names)

    def _checked(self, stored: str, parts: int) -> tuple[int, int, int]:
        """Experts, outputs and groups."""
        blocks, scales = stored + _BLOCKS, stored + _SCALES
        shape = self._files.shape(blocks)
        if scales not in self._files.shapes:
            raise UserError(f"{self.where}: tensor '{scales}' is missing, which belongs to '{blocks}'")
        right = len(shape) == 4 and shape[3] * 2 == GROUP and shape[1] % parts == 0
        if not right or self._files.dtype(blocks) != "U8":
            raise UserError(f"{self.where}: '{blocks}' holds no blocks of {GROUP} numbers in MXFP4")
        if self._files.shape(scales) != shape[:3] or self._files.dtype(scales) != "U8":
            raise UserError(f"{self.where}: '{scales}' does not fit '{blocks}'")
        return shape[0], shape[1], shape[2]

    def _read(self, name: str, of: _Rows, rows: range, stored: Callable[[str, int, int], torch.Tensor]) -> torch.Tensor:
        """Rows of a matrix's part; ``stored`` gives all rows between two of a tensor, by its ending."""
        if of.part == LEVELS:
            return torch.tensor(FLOAT4, dtype=torch.int8)[rows.start : rows.stop]
        # what lies between these rows comes with them
        first, end = of.first + rows.start * of.step, of.first + (rows.stop - 1) * of.step + 1
        if of.part == SCALE:
            return self._scales(name, stored(_SCALES, first, end)[:: of.step])
        return _codes(stored(_BLOCKS, first, end)[:: of.step])

    def _scales(self, name: str, exponent_RG: torch.Tensor) -> torch.Tensor:
        scale_RG = torch.from_numpy(half_of_powers(exponent_RG.numpy())).half()
        if not scale_RG.isfinite().all():
            raise UserError(f"{self.where}: scales of '{name.removesuffix(SCALE)}' are out of float16's range")
        return scale_RG


def _codes(byte_RGC: torch.Tensor) -> torch.Tensor:
    """[R, C] as a :class:`~spec_sdk.ops.quantized.QuantizedMatrix` has them, of bytes [R, G, C]."""
    first_RGC, second_RGC = byte_RGC.chunk(2, -1)
    # of the first half of the inputs the lower halves of bytes are made, of the second the upper ones
    even_RGC, odd_RGC = first_RGC & 15 | second_RGC << 4, first_RGC >> 4 | second_RGC & 240
    return torch.stack((even_RGC, odd_RGC), -1).flatten(1)
