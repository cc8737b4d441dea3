"""Models whose layers are of one part each, as config.json and GGUF files list them: a letter for every layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import layers_of
from spec_sdk.model.gguf_reader import GGUFFile

STATE_SPACE, ATTENTION, ONE_MLP, MIXTURE = "M*-E"
"""What a layer is."""
_KINDS = {
    "mamba": STATE_SPACE,
    "linear_attention": STATE_SPACE,
    "attention": ATTENTION,
    "full_attention": ATTENTION,
    "mlp": ONE_MLP,
    "moe": MIXTURE,
}
_HEADS, _WIDTHS = "attention.head_count_kv", "feed_forward_length"


def read_pattern(fields: Fields) -> str:
    """By ``layers_block_type`` (or ``layer_types``), a list of words, or by ``hybrid_override_pattern``, which has the
    letters.

    Raises UserError for a configuration with neither, for other layers, and for another number of them.
    """
    said = fields.get("hybrid_override_pattern")
    for key in ("layers_block_type", "layer_types"):
        listed = fields.get(key)
        if isinstance(listed, list):
            if unknown := sorted({str(each) for each in listed} - _KINDS.keys()):
                raise UserError(f"{fields.where}: {key} has '{unknown[0]}', which is not supported")
            said = "".join(_KINDS[each] for each in listed)
            break
    if not isinstance(said, str) or not said:
        raise UserError(f"{fields.where}: neither hybrid_override_pattern nor layers_block_type says what layers are")
    if unknown := sorted(set(said) - set(_KINDS.values())):
        raise UserError(f"{fields.where}: hybrid_override_pattern has '{unknown[0]}', which is not supported")
    if (layers := fields.size("num_hidden_layers", len(said))) != len(said):
        raise UserError(f"{fields.where}: num_hidden_layers is {layers}, and {len(said)} layers are listed")
    return said


def layers_by_kind(pattern: str) -> Mapping[str, Sequence[int]]:
    """The layers of each letter."""
    return {kind: [layer for layer, each in enumerate(pattern) if each == kind] for kind in _KINDS.values()}


def gguf_pattern(gguf: GGUFFile, architecture: str) -> tuple[str, GGUFFile]:
    """A file's layers, by their key-value heads and the width of their MLPs, and the file as one in which all have as
    many, and as wide ones. Prediction modules, which files count among their blocks, are none of them.

    Raises UserError for a file that does not list these, and for layers that have some, but not as many.
    """
    layers = layers_of(gguf, architecture)
    heads, widths = (_of_layers(gguf, f"{architecture}.{key}", layers) for key in (_HEADS, _WIDTHS))
    alike = copy.copy(gguf)
    own = {f"{architecture}.{_HEADS}": max(heads), f"{architecture}.{_WIDTHS}": max(widths)}
    alike.metadata = {**gguf.metadata, **own, f"{architecture}.block_count": layers}
    pattern = ""
    for layer, (attends, width) in enumerate(zip(heads, widths, strict=True)):
        if width:
            pattern += MIXTURE if f"blk.{layer}.ffn_gate_inp.weight" in gguf.tensors else ONE_MLP
        else:
            pattern += ATTENTION if attends else STATE_SPACE
    return pattern, alike


def _of_layers(gguf: GGUFFile, key: str, layers: int) -> Sequence[int]:
    listed = gguf.metadata.get(key)
    if not isinstance(listed, list) or len(listed) < layers or not all(isinstance(each, int) for each in listed):
        raise UserError(f"{gguf.where}: {key} does not list what each of {layers} layers has")
    own = listed[:layers]
    if not any(own) or set(own) - {0, max(own)}:
        raise UserError(f"{gguf.where}: {key} differs between layers that have any")
    return own
