"""Measured costs on disk: one file of JSON for each machine and choice of models."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_sdk.bench.cost_curve import CostCurve, PassCosts
from spec_sdk.files import write_json
from spec_sdk.model.source_cache import cache_root

FORMAT = 2
"""Of the files; also another one where kernels changed what passes cost by much, as the version stays the same."""
LONGEST_KEPT_S = 30 * 86400
"""After a month it is measured again: drivers and firmware change, and nobody says so."""


def place(facts: Mapping[str, Any]) -> Path:
    """The file of the costs that ``facts``, plain data, are all about."""
    return cache_root() / "costs" / f"{_digest(facts)}.json"


def read_costs(facts: Mapping[str, Any], today: float | None = None) -> PassCosts | None:
    """Costs that were kept; None if there are none, or if they are broken, of something else, or too old.

    ``today``: seconds since the epoch; now, if left out.
    """
    try:
        kept = json.loads(place(facts).read_text(encoding="utf-8"))
        if kept["format"] != FORMAT or kept["facts"] != _as_json(facts):
            return None
        age = (time.time() if today is None else today) - float(kept["measured_at"])
        seconds = float(kept["measured_s"])
        if not 0 <= age <= LONGEST_KEPT_S or not math.isfinite(seconds):
            return None
        draft = None if kept["draft"] is None else CostCurve.from_json(kept["draft"])
        return PassCosts(CostCurve.from_json(kept["target"]), draft, seconds)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_costs(facts: Mapping[str, Any], costs: PassCosts) -> None:
    """Keep them, whole or not at all; a directory that cannot be written to is passed over."""
    path = place(facts)
    with contextlib.suppress(OSError):
        os.makedirs(path.parent, exist_ok=True)
        write_json(
            path,
            {
                "format": FORMAT,
                "facts": _as_json(facts),
                "measured_at": time.time(),
                "measured_s": costs.measured_s,
                "target": costs.target.as_json(),
                "draft": None if costs.draft is None else costs.draft.as_json(),
            },
        )


def _as_json(facts: Mapping[str, Any]) -> Any:
    """As it comes back from a file."""
    return json.loads(json.dumps(facts, sort_keys=True, default=str))


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_as_json(facts), sort_keys=True).encode()).hexdigest()[:32]
