"""Checkpoints that have several tensors of a layer in one, read under the names of the table of weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.stored_matrices import StoredMatrices
from spec_sdk.model.weight_table import Packing, Rows, Shape, WeightTable, Within
from spec_sdk.ops.quantized import QuantizedMatrix


def packed_in(there: Collection[str], table: WeightTable) -> dict[str, Within]:
    """Which tensor of those that are ``there`` holds each of the table's that is not."""
    return {
        name: within[0]
        for name in table.shapes
        if name not in there and (within := [each for each in table.packed(name) if each.name in there])
    }


def part_of(tensor: torch.Tensor, name: str, packing: Packing, table: WeightTable) -> torch.Tensor:
    """The rows that are ``name``, a view unless they lie in groups, of the tensor that ``packing`` names."""
    row, _, expert = table.entry(name)
    own = tensor[expert] if row.per_expert else tensor
    return (own.T if packing.transposed else own)[_places(table.rows_within(row, packing))]


def _places(rows: Rows) -> slice | torch.Tensor:
    return slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else torch.tensor(rows)


def _around(rows: Rows) -> range:
    """These rows and those between them."""
    return rows if isinstance(rows, range) else range(min(rows), max(rows) + 1)


def published(tensors: Mapping[str, torch.Tensor], table: WeightTable) -> dict[str, torch.Tensor]:
    """Tensors of a table under the names that its family's checkpoints have: matrices of one input joined, and all
    experts of a layer, if they are there.
    """
    parts: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
    packings: dict[str, Packing] = {}
    of_experts = set()
    for name, tensor in tensors.items():
        row, _, expert = table.entry(name)
        within = next((each for each in table.packed(name) if each.packing.published), None)
        if within is None:
            parts[name] = {(0, 0): tensor}
            continue
        parts.setdefault(within.name, {})[expert, within.packing.part] = tensor
        packings[within.name] = within.packing
        if row.per_expert:
            of_experts.add(within.name)
    return {
        name: _joined(of, name in of_experts, packings.get(name), table.groups_of(packings.get(name)))
        for name, of in parts.items()
    }


def _joined(
    parts: Mapping[tuple[int, int], torch.Tensor], of_experts: bool, packing: Packing | None, groups: int
) -> torch.Tensor:
    """By expert and part."""
    numbers = sorted({part for _, part in parts})
    found = []
    for expert in sorted({expert for expert, _ in parts}):
        own = [parts[expert, part] for part in numbers]
        interleaved = packing is not None and packing.interleaved
        grouped = torch.cat([part.reshape(groups, -1, *part.shape[1:]) for part in own], 1).flatten(0, 1)
        whole = torch.stack(own, 1).flatten(0, 1) if interleaved else grouped
        found.append(whole.T if packing is not None and packing.transposed else whole)
    return torch.stack(found) if of_experts else found[0]


class WeightStore:
    """The tensors of a checkpoint by the names that ``table`` has for them, each under its own or within another.

    Raises UserError if one that others lie in has another shape than the configuration asks for.
    """

    def __init__(self, store: StoredMatrices, table: WeightTable) -> None:
        self._store = store
        self._table = table
        self._packed = packed_in(store.shapes, table)
        check_shapes({each.name: each.shape for each in self._packed.values()}, store.shapes, store.where)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Tensor name → shape, those within others among them."""
        parts = {name: self._table.shape(self._table.entry(name).row.role) for name in self._packed}
        return {**self._store.shapes, **parts}

    @property
    def within_others(self) -> frozenset[str]:
        """The stored tensors that others are within."""
        return frozenset(each.name for each in self._packed.values())

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in floating point, memory-mapped if it is stored so. Raises KeyError for an unknown name."""
        within = self._packed.get(name)
        if within is None:
            return self._store.tensor(name)
        return part_of(self._store.tensor(within.name), name, within.packing, self._table)

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """Some rows (``axis`` 0) or columns of a tensor: only they are read of one that is stored in floating point.

        Raises KeyError for an unknown name, UserError for a file that was torn since it was opened.
        """
        within = self._packed.get(name)
        if within is not None and not self._is_cut(name, within):
            return self.tensor(name).narrow(axis, first, end - first).clone()
        rows, columns = self._rows_and_columns(name, axis, first, end)
        around = _around(rows)
        part_RC = self._store.part(self._stored(name), around, columns)
        return part_RC if around == rows else part_RC[torch.tensor(rows) - around.start]

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        """The same of a matrix that is stored in few bits. Columns must be whole groups."""
        rows, columns = self._rows_and_columns(name, axis, first, end)
        around = _around(rows)
        matrix = self._store.quantized_part(self._stored(name), around, columns)
        return matrix if matrix is None or around == rows else matrix.rows(torch.tensor(rows) - around.start)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix as stored, memory-mapped; None for one that is stored in floating point."""
        matrix, within = self._store.quantized(self._stored(name)), self._packed.get(name)
        if matrix is None or within is None:
            return matrix
        return matrix.rows(_places(self._table.rows_within(self._table.entry(name).row, within.packing)))

    def _stored(self, name: str) -> str:
        """The name of the tensor that has it."""
        within = self._packed.get(name)
        return name if within is None else within.name

    def _is_cut(self, name: str, within: Within) -> bool:
        """Whether rows of a part are rows of the whole: an expert's biases are columns of theirs."""
        biases = self._table.entry(name).row.per_expert and len(within.shape) == 2
        return not (within.packing.transposed or within.packing.interleaved or biases)

    def _rows_and_columns(self, name: str, axis: int, first: int, end: int) -> tuple[Rows, range | None]:
        """Where a part lies in the matrix that is stored, all dims but the last together its rows."""
        row, _, expert = self._table.entry(name)
        within = self._packed.get(name)
        rows = self._table.rows_within(row, within and within.packing)
        if within is not None and row.per_expert:
            assert isinstance(rows, range), "no table has experts in groups"
            height = within.shape[1]
            rows = range(expert * height + rows.start, expert * height + rows.stop)
        if axis == 0:
            return rows[first:end], None
        return rows, range(first, end)

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as neither ordinary floating point nor a matrix in few bits."""
        self._store.check_floating(map(self._stored, names))
