"""One table of weights per architecture: what each is called, how it is shaped, how ranks divide it, where GGUF has it.

All that touches a checkpoint reads this table: loading, the check of shapes, the conversion of GGUF files, tensor
parallelism. Shapes are [rows, columns], as torch's linear layers store them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spec_sdk.model.config import ModelConfig

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Dim:
    """A dimension of weights; ``of(config)`` is its length in a model."""

    name: str
    of: Callable[[ModelConfig], int]


VOCABULARY = Dim("vocabulary", lambda config: config.vocab_size)
MODEL = Dim("model", lambda config: config.hidden_size)
MLP = Dim("mlp", lambda config: config.intermediate_size)
QUERIES = Dim("queries", lambda config: config.num_heads * config.head_dim)
"""All query heads, one below the other."""
KEYS = Dim("keys", lambda config: config.num_kv_heads * config.head_dim)
"""All KV heads, one below the other."""
HEAD = Dim("head", lambda config: config.head_dim)


def always(config: ModelConfig) -> bool:
    """For a weight that every model of the architecture has."""
    return True


@dataclass(frozen=True)
class Weight:
    """One row of a table: a tensor of the model, or, where its names hold ``{layer}``, one of every layer.

    ``role`` is what the decoder uses it for, ``name`` its Hugging Face name, ``gguf`` its name in GGUF files.

    ``split``: the dimension of ``shape`` that ranks divide among them; without one every rank has the whole tensor.
    ``after_sum``: it is added to a sum over ranks, so that only the first of them may have it.
    ``gain_minus_one``: Hugging Face stores a norm's gain less one, GGUF files have the gain itself.
    ``rotary_pairs``: llama.cpp's converter reorders its rows, head by head, so that the two of a rotary pair are
    neighbours; Hugging Face has them half a head apart.
    ``present``: whether a model of this configuration has it.
    """

    role: str
    name: str
    gguf: str
    shape: tuple[Dim, ...]
    split: Dim | None = None
    after_sum: bool = False
    rotary_pairs: bool = False
    gain_minus_one: bool = False
    present: Callable[[ModelConfig], bool] = always

    @property
    def per_layer(self) -> bool:
        """Whether every layer has one."""
        return "{layer}" in self.name


class WeightTable:
    """The weights of one model: the rows of its architecture's table that its configuration has, for all its layers.

    ``role in table`` says whether the model has such a weight.
    """

    def __init__(self, rows: Iterable[Weight], config: ModelConfig) -> None:
        self._config = config
        self._rows = {row.role: row for row in rows if row.present(config)}
        self._entries: dict[str, tuple[Weight, int]] = {}
        for per_layer, group in itertools.groupby(self._rows.values(), key=lambda row: row.per_layer):
            neighbours = list(group)
            for layer in range(config.num_layers if per_layer else 1):
                self._entries |= {self.name(row.role, layer): (row, layer) for row in neighbours}

    def __contains__(self, role: str) -> bool:
        return role in self._rows

    def name(self, role: str, layer: int = 0) -> str:
        """The Hugging Face name; ``layer`` says nothing for a weight outside the layers.

        Raises KeyError for a role that the model does not have.
        """
        return self._config.prefix + self._rows[role].name.format(layer=layer)

    def row(self, role: str) -> Weight:
        """Raises KeyError for a role that the model does not have."""
        return self._rows[role]

    def shape(self, role: str) -> Shape:
        """Rows first. Raises KeyError for a role that the model does not have."""
        return tuple(dim.of(self._config) for dim in self._rows[role].shape)

    def entry(self, name: str) -> tuple[Weight, int]:
        """The row of a Hugging Face name, and the layer (0 outside the layers).

        Raises KeyError for a name that the model does not have.
        """
        return self._entries[name]

    def gguf_name(self, name: str) -> str:
        """A Hugging Face name's in GGUF files. Raises KeyError for a name that the model does not have."""
        row, layer = self._entries[name]
        return row.gguf.format(layer=layer)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Hugging Face name → shape of every tensor of the model, layer by layer."""
        return {name: self.shape(row.role) for name, (row, _) in self._entries.items()}
