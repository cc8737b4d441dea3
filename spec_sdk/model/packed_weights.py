"""Checkpoints that have several tensors of a layer in one, read under the names of the table of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.stored_matrices import StoredMatrices
from spec_sdk.model.weight_table import Shape, WeightTable
from spec_sdk.ops.quantized import QuantizedMatrix


def part_of(tensor: torch.Tensor, name: str, table: WeightTable) -> torch.Tensor:
    """The rows that are ``name``, a view, of the tensor that :meth:`WeightTable.packed` says of it."""
    row, _, expert = table.entry(name)
    rows = table.rows_within(row, row.packing)
    return (tensor[expert] if row.per_expert else tensor)[rows.start : rows.stop]


def published(tensors: Mapping[str, torch.Tensor], table: WeightTable) -> dict[str, torch.Tensor]:
    """Tensors of a table under the names that its family's checkpoints have: matrices of one input joined, and all
    experts of a layer, if they are there.
    """
    parts: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
    of_experts = set()
    for name, tensor in tensors.items():
        (row, _, expert), packed = table.entry(name), table.packed(name)
        if row.packing is None or packed is None or not row.packing.published:
            parts[name] = {(0, 0): tensor}
            continue
        parts.setdefault(packed[0], {})[expert, row.packing.part] = tensor
        if row.per_expert:
            of_experts.add(packed[0])
    return {name: _joined(of, name in of_experts) for name, of in parts.items()}


def _joined(parts: Mapping[tuple[int, int], torch.Tensor], of_experts: bool) -> torch.Tensor:
    """By expert and part."""
    whole = torch.cat([parts[place] for place in sorted(parts)])
    experts = len({expert for expert, _ in parts})
    return whole.view(experts, -1, *whole.shape[1:]) if of_experts else whole


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
        return part_of(self._store.tensor(self._packed[name]), name, self._table)

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """Some rows (``axis`` 0) or columns of a tensor: only they are read of one that is stored in floating point.

        Raises KeyError for an unknown name, UserError for a file that was torn since it was opened.
        """
        return self._store.part(self._packed.get(name, name), *self._rows_and_columns(name, axis, first, end))

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        """The same of a matrix that is stored in few bits. Columns must be whole groups."""
        return self._store.quantized_part(self._packed.get(name, name), *self._rows_and_columns(name, axis, first, end))

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix as stored, memory-mapped; None for one that is stored in floating point."""
        matrix = self._store.quantized(self._packed.get(name, name))
        if matrix is None or name not in self._packed:
            return matrix
        rows = self._table.rows_within(row := self._table.entry(name).row, row.packing)
        return matrix.rows(slice(rows.start, rows.stop))

    def _rows_and_columns(self, name: str, axis: int, first: int, end: int) -> tuple[range, range | None]:
        """Where a part lies in the matrix that is stored, all dims but the last together its rows."""
        row, _, expert = self._table.entry(name)
        rows = self._table.rows_within(row, row.packing if name in self._packed else None)
        if name in self._packed and row.per_expert:
            packed = self._table.packed(name)
            assert packed is not None
            height = packed[1][1]
            rows = range(expert * height + rows.start, expert * height + rows.stop)
        if axis == 0:
            return rows[first:end], None
        return rows, range(first, end)

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as neither ordinary floating point nor a matrix in few bits."""
        self._store.check_floating(self._packed.get(name, name) for name in names)
