"""Some layers of a checkpoint: what a draft model that is cut out of the target is read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.quantized import QuantizedMatrix


def settings_of_layers(settings: Mapping[str, Any], config: ModelConfig, layers: Sequence[int]) -> dict[str, Any]:
    """The config.json ``settings`` of a model, which reads as ``config``, for these of its layers alone."""
    made = {**settings, "num_hidden_layers": len(layers)}
    if isinstance(kinds := made.get("layer_types"), list):
        made["layer_types"] = [kinds[layer] for layer in layers]
    elif config.windows:
        # what follows from a layer's number does not from its number among these
        slides = [config.windows[layer] is not None for layer in layers]
        made["layer_types"] = ["sliding_attention" if slid else "full_attention" for slid in slides]
    told_by_types = config.unrotated == tuple(i for i, window in enumerate(config.windows) if window is None)
    if 0 < len(config.unrotated) < config.num_layers and not told_by_types:
        # 1: the layer has rotary positions
        made["no_rope_layers"] = [int(layer not in config.unrotated) for layer in layers]
    return made


class LayersOf(TensorSource):
    """Some layers of a checkpoint, in order, as a checkpoint of a shallower model.

    ``embedding``: one that is loaded already, in place of the checkpoint's.
    """

    def __init__(self, source: TensorSource, layers: Sequence[int], embedding: Embedding | None = None) -> None:
        self._source, self.embedding = source, embedding
        self._layers = list(layers)
        self.config = source.config.of_layers(layers)
        self._whole = weights_of(source.config)
        self._table = weights_of(self.config)

    def names(self) -> frozenset[str]:
        there = self._source.names()
        return frozenset(name for name in self._table.shapes if self._theirs(name) in there)

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.tensor(self._theirs(name))

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        return self._source.part(self._theirs(name), axis, first, end)

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        return self._source.quantized_part(self._theirs(name), axis, first, end)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return self._source.quantized(self._theirs(name))

    def _theirs(self, name: str) -> str:
        """What the whole checkpoint calls the tensor."""
        row, layer, expert = self._table.entry(name)
        return self._whole.name(row.role, self._layers[layer] if row.per_layer else 0, expert)
