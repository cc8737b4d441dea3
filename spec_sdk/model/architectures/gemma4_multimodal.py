"""Gemma 4 as it is published: its text (:mod:`~spec_sdk.model.architectures.gemma4`), and towers for pictures and
sound, which are left out.
"""

from __future__ import annotations

from dataclasses import replace

from spec_sdk.model.architectures import gemma4
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.text_settings import text_fields
from spec_sdk.model.weight_table import within


def _read_config(fields: Fields) -> ModelConfig:
    return replace(gemma4.read_text(text_fields(fields)), architecture=fields.text("model_type", ""))


FAMILY = Family(
    model_types=("gemma4", "gemma4_unified"),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=gemma4.FAMILY.read_gguf,
    weights=within("model.language_model.", gemma4.FAMILY.weights),
)
