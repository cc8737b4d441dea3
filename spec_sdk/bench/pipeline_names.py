"""The pipelines that an option of a task lists, by their names."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError

PIPELINES = "task.pipelines"


def pipeline_names(given: Any, option: str) -> list[str]:
    """Those of a list, or the one that stands there alone. Raises UserError, naming ``option``, for anything else."""
    names = given if isinstance(given, list) else [given]
    if not (names and all(isinstance(name, str) and name.strip() for name in names)):
        raise UserError(f"{option}: {given!r} must be a list of pipelines; task=plugins lists them")
    return names
