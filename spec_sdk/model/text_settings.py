"""config.json of the text model alone, of a checkpoint that holds more: Gemma 3 and 4, Mistral, Qwen 3.5 that see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_sdk.model.config_fields import Fields

TEXTS_OF = {
    "gemma3": ("gemma3_text",),
    "gemma4": ("gemma4_text",),
    "gemma4_unified": ("gemma4_unified_text",),
    "mistral3": ("mistral", "ministral3", "mistral4"),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
}
"""``model_type`` of the whole → of the text models whose config it may have as ``text_config``, the usual one first."""
_SHARED = ("eos_token_id", "bos_token_id", "tie_word_embeddings", "quantization_config")
"""What the whole checkpoint says unless its text's part does."""


def text_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the text model's own config.json says: ``values`` as they are unless they are those of something larger."""
    kind, text = values.get("model_type"), values.get("text_config")
    if not isinstance(kind, str) or kind not in TEXTS_OF or not isinstance(text, Mapping):
        return dict(values)
    shared = {key: values[key] for key in _SHARED if values.get(key) is not None}
    own = text.get("model_type")
    return {**shared, **text, "model_type": own if own in TEXTS_OF[kind] else TEXTS_OF[kind][0]}


def text_fields(fields: Fields) -> Fields:
    """The same to be read, of a checkpoint that holds more; errors name its ``text_config``. Raises UserError unless
    there is one.
    """
    return Fields(text_settings(fields.values), fields.section("text_config").where)
