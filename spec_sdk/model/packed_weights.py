"""Checkpoints in which transformers 5 left several tensors of a layer in one, read under their original names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.stored_matrices import StoredMatrices
from spec_sdk.model.weight_table import Shape, WeightTable
from spec_sdk.ops.quantized import QuantizedMatrix


class WeightStore:
    """The tensors of a checkpoint by the names that ``table`` has for them, each under its own or within another.

    Raises UserError if one that others lie in has another shape than the configuration asks for.
    """

    def __init__(self, store: StoredMatrices, table: WeightTable) -> None:
        self._store = store
        self._table = table
        there = store.shapes
        self._packed = {
            name: packed[0]
            for name in table.shapes
            if name not in there and (packed := table.packed(name)) is not None and packed[0] in there
        }
        check_shapes(dict(filter(None, map(table.packed, self._packed))), there, store.where)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Tensor name → shape, those within others among them."""
        parts = {name: self._table.shape(self._table.entry(name).row.role) for name in self._packed}
        return {**self._store.shapes, **parts}

    @property
    def within_others(self) -> frozenset[str]:
        """The stored tensors that others are within."""
        return frozenset(self._packed.values())

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in floating point, memory-mapped if it is stored so. Raises KeyError for an unknown name."""
        if name not in self._packed:
            return self._store.tensor(name)
        row, _, expert = self._table.entry(name)
        assert row.packing is not None
        tensor = self._store.tensor(self._packed[name])
        if row.per_expert:
            tensor = tensor[expert]
        return tensor.chunk(row.packing.parts)[row.packing.part]

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """Some rows (``axis`` 0) or columns of a tensor: only they are read of one that is stored in floating point.

        Raises KeyError for an unknown name, UserError for a file that was torn since it was opened.
        """
        return self._store.part(self._packed.get(name, name), *self._rows_and_columns(name, axis, first, end))

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        """The same of a matrix that is stored in few bits. Columns must be whole groups."""
        if name in self._packed:
            return None
        return self._store.quantized_part(name, *self._rows_and_columns(name, axis, first, end))

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix as stored, memory-mapped; None for one that is stored in floating point."""
        return None if name in self._packed else self._store.quantized(name)

    def _rows_and_columns(self, name: str, axis: int, first: int, end: int) -> tuple[range, range | None]:
        """Where a part lies in the matrix that is stored, all dims but the last together its rows."""
        row, _, expert = self._table.entry(name)
        rows = self._table.shape(row.role)[0]
        before = 0
        if name in self._packed:
            assert row.packing is not None
            before = rows * (row.packing.part + row.packing.parts * (expert if row.per_expert else 0))
        if axis == 0:
            return range(before + first, before + end), None
        return range(before, before + rows), range(first, end)

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as neither ordinary floating point nor a matrix in few bits."""
        self._store.check_floating(self._packed.get(name, name) for name in names)
