"""Checkpoints in which transformers 5 left several tensors of a layer in one, read under their original names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.safetensors_reader import SafetensorsStore
from spec_sdk.model.weight_table import Shape, WeightTable


class WeightStore:
    """The tensors of a checkpoint by the names that ``table`` has for them, each under its own or within another.

    Raises UserError if one that others lie in has another shape than the configuration asks for.
    """

    def __init__(self, store: SafetensorsStore, table: WeightTable) -> None:
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

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped. Raises KeyError for an unknown name."""
        if name not in self._packed:
            return self._store.tensor(name)
        row, _, expert = self._table.entry(name)
        assert row.packing is not None
        tensor = self._store.tensor(self._packed[name])
        if row.per_expert:
            tensor = tensor[expert]
        return tensor.chunk(row.packing.parts)[row.packing.part]

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as anything but ordinary floating point."""
        self._store.check_floating(self._packed.get(name, name) for name in names)
