"""Matrices that a checkpoint stores in few bits: codes, scales and offsets, each a tensor of its own.

The matrix ``NAME`` lies in ``NAME.codes`` (int8 or uint8), ``NAME.scale`` and ``NAME.offset`` (float16, the latter not
for all), maybe beside ``NAME.levels`` (int8), which together are a :class:`~spec_sdk.ops.quantized.QuantizedMatrix`.
GGUF files are converted to that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.safetensors_reader import TensorFiles
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix, bits_of, bytes_of_group, scales_of_group

CODES, SCALE, OFFSET, LEVELS = ".codes", ".scale", ".offset", ".levels"
DTYPES = {"I8": True, "U8": False}
"""Whether codes have a sign, by their safetensors dtype."""


class StoredMatrices:
    """The tensors of a checkpoint, those among them that are stored in few bits under one name each.

    Raises UserError for codes whose scales are not there or do not fit them.
    """

    def __init__(self, store: TensorFiles) -> None:
        self._store = store
        self.where = store.where
        shapes = dict(store.shapes)
        self._parts: dict[str, list[str]] = {}
        self._levels: dict[str, tuple[int, ...]] = {}
        for name in [name.removesuffix(CODES) for name in shapes if name.endswith(CODES)]:
            if name in shapes:
                raise UserError(f"{self.where}: tensor '{name}' is stored twice, once in few bits")
            shapes[name] = self._shape(name, shapes)
            if shapes.pop(name + LEVELS, None) is not None:
                self._levels[name] = tuple(store.tensor(name + LEVELS).tolist())
            self._parts[name] = [name + part for part in (CODES, SCALE, OFFSET) if shapes.pop(name + part, None)]
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped, or expanded to float32. Raises KeyError for an unknown name."""
        matrix = self.quantized(name)
        return self._store.tensor(name) if matrix is None else matrix.dequantized(torch.float32)

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Some rows, and of each maybe only some columns: only what is asked for is read of what is stored so.

        Raises KeyError for an unknown name, UserError for a file that was torn since it was opened.
        """
        if name not in self._parts:
            return self._store.part(name, rows, columns)
        part_RI = self._matrix(name, [self._store.part(part, rows) for part in self._parts[name]]).dequantized(
            torch.float32
        )
        return part_RI if columns is None else part_RI[:, columns.start : columns.stop]

    def quantized_part(self, name: str, rows: range, columns: range | None = None) -> QuantizedMatrix | None:
        """The same of a matrix that is stored in few bits. Columns must be whole groups."""
        if name not in self._parts:
            return None
        parts = []
        for part in self._parts[name]:
            width = self._store.shape(part)[1]
            some = None
            if columns is not None:
                # bytes of codes, and scales: all in proportion to the matrix's own columns
                inputs = self.shapes[name][1]
                some = range(columns.start * width // inputs, columns.stop * width // inputs)
            parts.append(self._store.part(part, rows, some))
        return self._matrix(name, parts)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix as stored, memory-mapped; None for one that is stored in floating point."""
        if name not in self._parts:
            return None
        return self._matrix(name, [self._store.tensor(part) for part in self._parts[name]])

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which :meth:`tensor` gives it. Raises KeyError for an unknown name."""
        return "F32" if name in self._parts else self._store.dtype(name)

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as neither ordinary floating point nor a matrix in few bits."""
        self._store.check_floating(name for name in names if name not in self._parts)

    def _matrix(self, name: str, parts: Sequence[torch.Tensor]) -> QuantizedMatrix:
        return dataclasses.replace(QuantizedMatrix(*parts), levels=self._levels.get(name))

    def _shape(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        signed = DTYPES.get(self._store.dtype(name + CODES))
        codes, scales = shapes[name + CODES], shapes.get(name + SCALE, ())
        if signed is None or len(codes) != 2:
            raise UserError(f"{self.where}: '{name}{CODES}' holds no codes of 4, 5, 6 or 8 bits")
        bits = bits_of(signed, codes[1], scales[1]) if len(scales) == 2 else None
        if bits is None:
            raise UserError(f"{self.where}: '{name}{SCALE}' is missing or does not fit the codes of '{name}'")
        if codes[1] % bytes_of_group(bits):
            raise UserError(f"{self.where}: '{name}{CODES}' holds no whole groups of {GROUP} codes")
        rows, groups = codes[0], codes[1] // bytes_of_group(bits)
        if name + LEVELS in shapes:
            right = shapes[name + LEVELS] == (16,) and self._store.dtype(name + LEVELS) == "I8"
            if not right or bits != 4 or name + OFFSET in shapes:
                raise UserError(f"{self.where}: '{name}{LEVELS}' does not fit the codes of '{name}'")
        for part in (SCALE, OFFSET):
            there = shapes.get(name + part)
            if there is None and part == OFFSET:
                continue
            if there != (rows, groups * scales_of_group(bits)) or self._store.dtype(name + part) != "F16":
                raise UserError(f"{self.where}: '{name}{part}' is missing or does not fit the codes of '{name}'")
        return rows, groups * GROUP
