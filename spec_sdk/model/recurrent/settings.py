"""Which layers are recurrent, as config.json says it."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields


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
