"""Which models an engine is given, and what two engines on the same models have in common."""

from __future__ import annotations

import os

from hydra.core.override_parser.types import Override

from spec_sdk.errors import UserError
from spec_sdk.model.in_memory import InMemoryModel
from spec_sdk.ranks import launched_processes
from spec_sdk.settings import PLUGIN_NODES, Settings

Model = str | os.PathLike[str] | InMemoryModel
"""A model: a directory in Hugging Face layout, a GGUF file, a hub id, or one in memory."""


def reference_of(model: Model, given: dict[str, InMemoryModel], name: str) -> str:
    """What the settings call a model; one in memory is noted in ``given``.

    Raises UserError, naming the argument ``name``, for what is no model.
    """
    if isinstance(model, InMemoryModel):
        given[model.reference] = model
        return model.reference
    if not isinstance(model, str | os.PathLike):
        raise UserError(
            f"{name}: a {type(model).__name__} is no model: give a directory, a .gguf file, a hub id, or "
            "InMemoryModel(tensors, config, tokenizer)"
        )
    return os.fspath(model)


def is_shared(override: Override) -> bool:
    """Whether an override holds for other pipelines on the same models too: it is of no plugin but the backend and the
    constraint.
    """
    group = str(override.key_or_group).partition(".")[0]
    return group in ("backend", "constraint") or group not in (*PLUGIN_NODES, "pipeline")


def check_shared(settings: Settings, loaded: Settings) -> None:
    """Raise UserError for settings that the loaded models do not serve."""
    pairs = (
        ("model.target", settings.model.target, loaded.model.target),
        ("model.context", settings.model.context, loaded.model.context),
        ("model.dtype", settings.model.dtype, loaded.model.dtype),
        ("model.kv_cache", settings.model.kv_cache, loaded.model.kv_cache),
        ("model.weights", settings.model.weights, loaded.model.weights),
        ("model.draft_weights", settings.model.draft_weights, loaded.model.draft_weights),
        ("deterministic", settings.deterministic, loaded.deterministic),
        ("backend", dict(settings.backend), dict(loaded.backend)),
    )
    for name, asked, there in pairs:
        if asked != there:
            raise UserError(
                f"{name}: {asked!r} is asked for, and the loaded models have {there!r}; load others with "
                "Engine.from_pipeline"
            )


def check_alone() -> None:
    """Raise UserError in one of several launched processes, of which one leads and the others follow."""
    if launched_processes() > 1:
        raise UserError(
            f"{launched_processes()} processes were launched; an engine serves one, and python -m spec_sdk runs over "
            "several (docs/several_processes.md)"
        )
