"""What a stream tells of each step, where ``stream_options`` have ``include_speculation``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spec_sdk.api.step import Step


def told(steps: Sequence[Step]) -> dict[str, Any]:
    """A choice's ``speculation``: the steps that the chunk is of, with the names of :class:`Step`.

    Numbers have four digits, enough to be looked at; one that JSON does not know becomes null.
    """
    return {"steps": [_short(asdict(step)) for step in steps]}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value
