"""Which layers are recurrent, as config.json and GGUF files say it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile


def layers_of_type(fields: Fields, kind: str, default: Sequence[int]) -> tuple[int, ...]:
    """The layers that ``layer_types`` calls ``kind``, where the others have full attention; ``default`` without it.

    Raises UserError for a layer of another type, and for a list that does not name every layer.
    """
    listed, layers = fields.get("layer_types"), fields.size("num_hidden_layers")
    if listed is None:
        return tuple(default)
    if not isinstance(listed, list) or len(listed) != layers:
        raise UserError(f"{fields.where}: layer_types must list the types of {layers} layers")
    if unknown := sorted({str(each) for each in listed} - {"full_attention", kind}):
        raise UserError(f"{fields.where}: layer_types has '{unknown[0]}', which is not supported")
    return tuple(layer for layer, each in enumerate(listed) if each == kind)


def attending_layers(gguf: GGUFFile, architecture: str) -> tuple[list[bool], GGUFFile]:
    """Of each layer whether it has attention, by its key-value heads, and the file as one in which all have as many.

    Raises UserError for a file that does not list them, and for layers that have some, but not as many.
    """
    key = f"{architecture}.attention.head_count_kv"
    heads, layers = gguf.metadata.get(key), Fields(gguf.metadata, gguf.where).size(f"{architecture}.block_count")
    if not isinstance(heads, list) or not all(isinstance(count, int) for count in heads):
        raise UserError(f"{gguf.where}: {key} does not list the key-value heads of every layer")
    if len(heads) != layers or not any(heads) or set(heads) - {0, max(heads)}:
        raise UserError(f"{gguf.where}: {key} differs between layers with attention")
    alike = copy.copy(gguf)
    alike.metadata = {**gguf.metadata, key: max(heads)}
    return [count > 0 for count in heads], alike
