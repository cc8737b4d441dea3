"""The JSON that scripts that measure leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_sdk.events import finite
from spec_sdk.files import write_json


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write ``report`` as JSON, a NaN or infinity in it as null, making its directory, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, finite(report))
    print(f"written: {path}", flush=True)
