"""The architectures that can be run. Every module of this package is one, and says in ``FAMILY`` all there is to know.

A new one is one new file: it is found by lying here.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.weight_table import WeightTable


@functools.cache
def families() -> tuple[Family, ...]:
    """All of them, in the order of their modules' names."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in modules)


def weights_of(config: ModelConfig) -> WeightTable:
    """The weights of a model."""
    return WeightTable(_by_model_type()[config.architecture].weights, config)


def read_config(values: Mapping[str, Any], where: str) -> ModelConfig:
    """Read a Hugging Face ``config.json``. A missing key means what it means to transformers.

    Raises UserError, naming ``where``, for an unsupported architecture or feature and for impossible values.
    """
    fields, known = Fields(values, where), _by_model_type()
    name = fields.text("model_type", "")
    if "speculators_model_type" in values:
        raise UserError(f"{where}: is of a draft head, not of a model: pipeline=eagle_tree drafter.checkpoint=…")
    if not name:
        raise UserError(f"{where}: no model_type, so its architecture is unknown")
    if name not in known:
        hint = did_you_mean(name, known)
        supported = "" if hint.startswith(";") else f" (supported: {', '.join(sorted(known))})"
        raise UserError(f"{where}: unsupported architecture '{name}'{hint}{supported}")
    return known[name].read_config(fields)


def read_gguf_config(gguf: GGUFFile) -> dict[str, Any]:
    """What the config.json of a GGUF file's model would say.

    Raises UserError for an unsupported architecture or feature and for what the file lacks.
    """
    meta = Fields(gguf.metadata, gguf.where)
    known = {name: family for family in families() for name in family.gguf_architectures}
    name = meta.text("general.architecture", "")
    if name not in known:
        raise UserError(f"{gguf.where}: unsupported GGUF architecture '{name}'{did_you_mean(name, known)}")
    return known[name].read_gguf(gguf)


def _by_model_type() -> dict[str, Family]:
    return {name: family for family in families() for name in family.model_types}
