"""One table of weights per architecture: what each is called, how it is shaped, how ranks divide it, where GGUF has it.

All that touches a checkpoint reads this table: loading, the check of shapes, the conversion of GGUF files, tensor
parallelism. Shapes are [rows, columns], as torch's linear layers store them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spec_sdk.model.config import ModelConfig

Shape = tuple[int, ...]
Rows = range | tuple[int, ...]


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
QUERY_HEADS = Dim("query heads", lambda config: config.num_heads)
EXPERTS = Dim("experts", lambda config: config.experts.count if config.experts else 0)
EXPERT_MLP = Dim("expert mlp", lambda config: config.experts.intermediate_size if config.experts else 0)
SHARED_MLP = Dim("shared mlp", lambda config: (config.experts and config.experts.shared_intermediate_size) or 0)
LATENT = Dim("latent", lambda config: config.latent.kv_lora_rank if config.latent else 0)
QUERY_LATENT = Dim("query latent", lambda config: (config.latent and config.latent.q_lora_rank) or 0)
CACHED = Dim("cached", lambda config: config.latent.width if config.latent else 0)
"""A token's latent and rotated key."""
LATENT_QUERIES = Dim("queries", lambda config: config.num_heads * config.latent.qk_head_dim if config.latent else 0)
PLAIN = Dim("plain", lambda config: config.latent.qk_nope_head_dim if config.latent else 0)
PLAIN_KEYS = Dim("plain keys", lambda config: config.num_heads * PLAIN.of(config))
KEY_ROWS = Dim(
    "rows of keys", lambda config: config.num_heads * (LATENT if has_k_b_transposed(config) else PLAIN).of(config)
)
KEY_COLUMNS = Dim("columns of keys", lambda config: (PLAIN if has_k_b_transposed(config) else LATENT).of(config))
"""What makes keys of latents."""
VALUE = Dim("value", lambda config: config.latent.v_head_dim if config.latent else 0)
VALUES = Dim("values", lambda config: config.num_heads * VALUE.of(config))
NUMBER = Dim("number", lambda config: 1)
ONE = Dim("one", lambda config: 1)
"""llama.cpp's converter leaves it out."""


def has_k_b_transposed(config: ModelConfig) -> bool:
    """Whether what makes K of latents is stored transposed, head by head."""
    return config.latent is not None and config.latent.k_b_transposed


def always(config: ModelConfig) -> bool:
    """For a weight that every model of the architecture has."""
    return True


def decoder_layers(config: ModelConfig) -> int:
    """For a weight that every block of the decoder has."""
    return config.num_layers


def every_layer(config: ModelConfig, layer: int) -> bool:
    """For a weight that all layers have."""
    return True


def no_layer(config: ModelConfig, layer: int) -> bool:
    """For a weight that no layer has."""
    return False


def has_mlp(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has an MLP: mostly those without a mixture of experts."""
    beside = config.experts is not None and config.experts.beside_mlp
    return (beside or not has_experts(config, layer)) and layer not in config.without_mlp


def has_experts(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has a mixture of experts."""
    return config.experts is not None and layer in config.experts.layers


def has_shared_expert(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has a mixture with an expert for all tokens."""
    return has_experts(config, layer) and bool(SHARED_MLP.of(config))


def has_gated_expert(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has such an expert under a weight of its own."""
    return has_shared_expert(config, layer) and config.experts is not None and config.experts.shared_gated


@dataclass(frozen=True)
class Packing:
    """Within which tensor another lies: one of several along its rows, of these ``heights``, and which ``part``.

    Without heights it has the tensor to itself. All experts of a layer are one tensor, expert first. ``interleaved``:
    rows of the parts, of one height, take turns; ``groups``: the tensor is so many groups, one below the other, each of
    which has as many rows of every part; ``transposed``: they are columns there. ``published``: whether the family's
    checkpoints have it there, or only some that transformers 5 wrote. ``present``: whether files of a model of this
    configuration have it there.
    """

    name: str
    heights: tuple[Dim, ...] = ()
    part: int = 0
    published: bool = True
    interleaved: bool = False
    groups: Dim | None = None
    transposed: bool = False
    present: Callable[[ModelConfig], bool] = always


@dataclass(frozen=True)
class Weight:
    """One row of a table: a tensor of the model, or, where its names hold ``{layer}``, one of every layer.

    Where its name holds ``{expert}`` it is one of every expert, and GGUF files have one tensor of all experts of a
    layer, expert first.

    ``role`` is what the decoder uses it for, ``name`` its Hugging Face name, ``gguf`` its name in GGUF files.

    ``split``: the dimension of ``shape`` that ranks divide among them; without one every rank has the whole tensor.
    ``after_sum``: it is added to a sum over ranks, so that only the first of them may have it.
    ``gain_minus_one``: Hugging Face stores a norm's gain less one, GGUF files have the gain itself.
    ``gguf_negated_exponential``: GGUF files have −e^x of it.
    ``rotary_pairs``: llama.cpp's converter reorders its rows, head by head, so that the two of a rotary pair are
    neighbours; Hugging Face has them half a head apart.
    ``present``: whether a model of this configuration has it. ``layers``: how many ``{layer}`` counts; ``in_layer``:
    whether that layer has it; ``idle_in_layer``: whether files may have it of a layer that makes no use of it.
    ``gguf_shape``: that of GGUF files, where it is another one. ``packings``: where else checkpoints of Hugging Face
    may keep it; ``gguf_packing``: where GGUF files do.
    """

    role: str
    name: str
    gguf: str
    shape: tuple[Dim, ...]
    split: Dim | None = None
    after_sum: bool = False
    rotary_pairs: bool = False
    gain_minus_one: bool = False
    gguf_negated_exponential: bool = False
    present: Callable[[ModelConfig], bool] = always
    layers: Callable[[ModelConfig], int] = decoder_layers
    in_layer: Callable[[ModelConfig, int], bool] = every_layer
    idle_in_layer: Callable[[ModelConfig, int], bool] = no_layer
    packings: tuple[Packing, ...] = ()
    gguf_packing: Packing | None = None
    gguf_shape: tuple[Dim, ...] = ()

    @property
    def per_layer(self) -> bool:
        """Whether every layer has one."""
        return "{layer}" in self.name

    @property
    def per_expert(self) -> bool:
        """Whether every expert has one."""
        return "{expert}" in self.name


class Place(NamedTuple):
    """Which tensor of a row: its layer and expert, 0 for a row that is not one of each."""

    row: Weight
    layer: int
    expert: int


class Within(NamedTuple):
    """A tensor that may hold another: its name, its shape, and which part of it the other is."""

    name: str
    shape: Shape
    packing: Packing


class WeightTable:
    """The weights of one model: the rows of its architecture's table that its configuration has, for all its layers.

    ``role in table`` says whether any layer of the model has such a weight.
    """

    def __init__(self, rows: Iterable[Weight], config: ModelConfig) -> None:
        self._config = config
        self._entries: dict[str, Place] = {}
        present = [row for row in rows if row.present(config)]
        self._idle = [
            (row, layer)
            for row in present
            for layer in range(row.layers(config) if row.per_layer else 0)
            if row.idle_in_layer(config, layer)
        ]
        repeats = {row.role: row.layers(config) if row.per_layer else 0 for row in present}
        for layers, group in itertools.groupby(present, key=lambda row: repeats[row.role]):
            neighbours = list(group)
            for layer in range(layers or 1):
                self._add([row for row in neighbours if row.in_layer(config, layer)], layer)
        self._rows = {place.row.role: place.row for place in self._entries.values()}

    def _add(self, rows: Iterable[Weight], layer: int) -> None:
        for per_expert, group in itertools.groupby(rows, key=lambda row: row.per_expert):
            neighbours = list(group)
            for expert in range(EXPERTS.of(self._config) if per_expert else 1):
                for row in neighbours:
                    self._entries[self._name(row, layer, expert)] = Place(row, layer, expert)

    def _name(self, row: Weight, layer: int, expert: int) -> str:
        return self._config.prefix + row.name.format(layer=layer, expert=expert)

    def __contains__(self, role: str) -> bool:
        return role in self._rows

    @property
    def roles(self) -> Sequence[str]:
        """Those that any layer of the model has, in the order of the table."""
        return tuple(self._rows)

    def name(self, role: str, layer: int = 0, expert: int = 0) -> str:
        """The Hugging Face name; ``layer`` and ``expert`` say nothing for a weight that is not one of each.

        Raises KeyError for a role that the model does not have.
        """
        return self._name(self._rows[role], layer, expert)

    def row(self, role: str) -> Weight:
        """Raises KeyError for a role that the model does not have."""
        return self._rows[role]

    def shape(self, role: str) -> Shape:
        """Rows first. Raises KeyError for a role that the model does not have."""
        return tuple(dim.of(self._config) for dim in self._rows[role].shape)

    def entry(self, name: str) -> Place:
        """Which tensor a Hugging Face name is. Raises KeyError for a name that the model does not have."""
        return self._entries[name]

    def gguf_name(self, name: str) -> str:
        """A Hugging Face name's in GGUF files. Raises KeyError for a name that the model does not have."""
        row, layer, _ = self._entries[name]
        packing = self.gguf_packing(name)
        return (packing.name if packing else row.gguf).format(layer=layer)

    def gguf_packing(self, name: str) -> Packing | None:
        """Where GGUF files have a Hugging Face name's tensor among others; None where they have it alone.

        Raises KeyError for a name that the model does not have.
        """
        packing = self._entries[name].row.gguf_packing
        return packing if packing is not None and packing.present(self._config) else None

    def gguf_rows(self, name: str) -> Rows:
        """Which rows of that tensor a Hugging Face name is. Raises KeyError for a name that the model does not have."""
        return self.rows_within(self._entries[name].row, self.gguf_packing(name))

    def rows_within(self, row: Weight, packing: Packing | None) -> Rows:
        """Which rows of the tensor that ``packing`` names are this one, or of its own: a range unless they lie in
        groups.
        """
        heights = [dim.of(self._config) for dim in (packing and packing.heights) or ()]
        if packing and packing.interleaved:
            return range(packing.part, sum(heights), len(heights))
        before = sum(heights[: packing.part]) if packing else 0
        height = row.shape[0].of(self._config)
        if (groups := self.groups_of(packing)) == 1:
            return range(before, before + height)
        starts = range(before // groups, sum(heights), sum(heights) // groups)
        return tuple(first + place for first in starts for place in range(height // groups))

    def groups_of(self, packing: Packing | None) -> int:
        """Of how many groups the tensor that ``packing`` names consists."""
        return packing.groups.of(self._config) if packing and packing.groups else 1

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Hugging Face name → shape of every tensor of the model, layer by layer."""
        return {name: self.shape(place.row.role) for name, place in self._entries.items()}

    @property
    def idle(self) -> frozenset[str]:
        """Hugging Face names that checkpoints may have, and that no layer makes use of."""
        return frozenset(self._name(row, layer, 0) for row, layer in self._idle)

    @property
    def idle_in_gguf(self) -> frozenset[str]:
        """The same of GGUF files."""
        return frozenset(row.gguf.format(layer=layer) for row, layer in self._idle)

    @property
    def gguf_shapes(self) -> Mapping[str, Shape]:
        """GGUF name → shape of every tensor of the model in GGUF files."""
        experts = EXPERTS.of(self._config)
        return {
            self.gguf_name(name): (
                *((experts,) if row.per_expert else ()),
                *self._gguf_shape(row, self.gguf_packing(name)),
            )
            for name, (row, _, _) in self._entries.items()
        }

    def _gguf_shape(self, row: Weight, packing: Packing | None) -> Shape:
        """Of one expert, if it is one of each. A reader of these files leaves out dimensions of 1 that come first."""
        own = () if packing else row.gguf_shape
        shape = self._packed_shape(packing, own or [dim for dim in row.shape if dim is not ONE])
        return shape[1:] if own and shape[0] == 1 else shape

    def packed(self, name: str) -> list[Within]:
        """The tensors that may hold a Hugging Face name's in its place. Raises KeyError for a name that the model does
        not have.
        """
        row, layer, _ = self._entries[name]
        experts = (EXPERTS.of(self._config),) if row.per_expert else ()
        return [
            Within(
                self._config.prefix + packing.name.format(layer=layer),
                (*experts, *self._packed_shape(packing, row.shape)),
                packing,
            )
            for packing in row.packings
        ]

    def _packed_shape(self, packing: Packing | None, dims: Sequence[Dim]) -> Shape:
        shape = [dim.of(self._config) for dim in dims]
        if packing and packing.heights:
            shape[0] = sum(dim.of(self._config) for dim in packing.heights)
        return tuple(reversed(shape) if packing and packing.transposed else shape)


def within(whole: str, rows: Iterable[Weight]) -> tuple[Weight, ...]:
    """A text model's table in a checkpoint that holds more, where ``whole`` is what the text calls ``model.``"""

    def named(name: str) -> str:
        return name.replace("model.", whole, 1)

    return tuple(
        replace(
            row,
            name=named(row.name),
            packings=tuple(replace(packing, name=named(packing.name)) for packing in row.packings),
        )
        for row in rows
    )
