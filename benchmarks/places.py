"""Where benchmarks keep what they found."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
