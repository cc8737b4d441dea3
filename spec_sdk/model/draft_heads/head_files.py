"""The files of a published head: config.json and safetensors, before anybody knows of which layout they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.claimed_counts import check_counts
from spec_sdk.model.config_fields import Fields, read_json_object
from spec_sdk.model.float8_weights import Float8Weights, block_of
from spec_sdk.model.quantization_config import quantization_of
from spec_sdk.model.safetensors_reader import open_directory
from spec_sdk.model.stored_matrices import StoredMatrices
from spec_sdk.model.text_settings import text_settings
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops.quantized import QuantizedMatrix

INTEGERS = ("I64", "I32", "I16")
MARKS = ("BOOL", "U8", "I8")
_NOT_FLOATING = {"d2t": INTEGERS, "t2d": MARKS, "token_map": INTEGERS}


@dataclass(frozen=True)
class HeadFiles:
    """A directory with a config.json and safetensors."""

    directory: Path
    config: Fields
    store: StoredMatrices

    @staticmethod
    def open(directory: Path) -> HeadFiles:
        """Raises UserError for files that are missing or damaged."""
        path = directory / "config.json"
        if not path.is_file():
            raise UserError(f"{directory}: has no config.json")
        values = read_json_object(path)
        # a module may lie in its target's checkpoint, and DeepSeek-V3's is published so
        files = Float8Weights(open_directory(directory), block_of(quantization_of(text_settings(values))))
        store = StoredMatrices(files)
        check_counts(values, store.shapes, str(path))
        return HeadFiles(directory, Fields(values, str(path)), store)

    @property
    def names(self) -> Collection[str]:
        """The tensors' names as they are stored."""
        return self.store.shapes.keys()

    @property
    def architectures(self) -> list[str]:
        """What config.json calls the model."""
        value = self.config.get("architectures")
        return [str(name) for name in value] if isinstance(value, list) else []

    def tensors(self, renamed: Mapping[str, str] | None = None) -> HeadTensors:
        """The tensors by name. ``renamed``: the name that one is known by → the one it is stored under."""
        theirs = {stored: name for name, stored in (renamed or {}).items()}
        return HeadTensors(self.store, {theirs.get(stored, stored): stored for stored in self.names})


class HeadTensors:
    """The tensors of a head by the names that this package has for them, whatever they are stored under."""

    def __init__(self, store: StoredMatrices, stored_as: Mapping[str, str]) -> None:
        self.where = store.where
        self._store = store
        self._stored_as = stored_as

    def __contains__(self, name: str) -> bool:
        return name in self._stored_as

    @property
    def names(self) -> Collection[str]:
        return self._stored_as.keys()

    def shape(self, name: str) -> Shape:
        """Raises KeyError for a name that is not there."""
        return tuple(self._store.shapes[self._stored_as[name]])

    def tensor(self, name: str) -> torch.Tensor:
        """As stored, what is FP8 or in few bits as float32. Raises KeyError for a name that is not there."""
        return self._store.tensor(self._stored_as[name])

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix as stored; None for one in floating point. Raises KeyError for a name that is not there."""
        return self._store.quantized(self._stored_as[name])

    def tensor_if_any(self, name: str) -> torch.Tensor | None:
        return self.tensor(name) if name in self else None

    def check(self, required: Mapping[str, Shape], optional: Mapping[str, Shape], ignored: Collection[str]) -> None:
        """Raise UserError unless these tensors are there, in these shapes and dtypes, and no others."""
        found = {name: self.shape(name) for name in self._stored_as}
        there = {name: shape for name, shape in optional.items() if name in found}
        check_shapes({**required, **there}, found, self.where)
        unknown = [name for name in found if name not in required and name not in optional and name not in ignored]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise UserError(f"{self.where}: tensor '{self._stored_as[unknown[0]]}'{more} is none that such a head has")
        used = {**required, **there}
        self._store.check_floating(self._stored_as[name] for name in used if name not in _NOT_FLOATING)
        for name, dtypes in _NOT_FLOATING.items():
            if name in used and (dtype := self._store.dtype(self._stored_as[name])) not in dtypes:
                raise UserError(f"{self.where}: tensor '{name}' is stored as {dtype}, not as {dtypes[0]}")
