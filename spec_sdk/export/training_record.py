"""What the training of a draft left beside it: its acceptance, and the target that it was trained for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.trained_drafts import FACTS


def training_record(directory: Path) -> Mapping[str, Any]:
    """The facts in ``training.json``; empty without one. Raises UserError for a file that is no JSON object."""
    path = directory / FACTS
    return read_json_object(path) if path.is_file() else {}


def recorded_rates(record: Mapping[str, Any]) -> tuple[float, ...]:
    """The acceptance rate of every place in a chain, as measured last while training; empty if it is not there."""
    curve = record.get("curve")
    last = curve[-1] if isinstance(curve, list) and curve else {}
    rates = last.get("acceptance_rate_by_step") if isinstance(last, dict) else None
    known = []
    for rate in rates if isinstance(rates, list) else []:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            break
        known.append(float(rate))
    return tuple(known)
