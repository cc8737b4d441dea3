"""Qwen 3.5 as it is published: its text (:mod:`~spec_sdk.model.architectures.qwen3_5`), a vision tower and prediction
modules, which are left out.
"""

from __future__ import annotations

from dataclasses import replace

from spec_sdk.model.architectures import qwen3_5
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.text_settings import text_fields
from spec_sdk.model.weight_table import within


def _read_config(fields: Fields) -> ModelConfig:
    return replace(qwen3_5.read_text(text_fields(fields)), architecture=fields.text("model_type", ""))


FAMILY = Family(
    model_types=("qwen3_5", "qwen3_5_moe"),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=qwen3_5.FAMILY.read_gguf,
    weights=within("model.language_model.", qwen3_5.FAMILY.weights),
)
