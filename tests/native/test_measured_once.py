"""What is timed once on a machine: kept, and timed within another such timing without waiting for itself."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from spec_sdk_backends import measured_once as module
from spec_sdk_backends.measured_once import measured_once


def test_a_figure_may_be_measured_within_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the rows from which on torch's products are faster, when prompts are timed first on a new machine."""
    monkeypatch.setattr(module, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(module, "LONGEST_S", -1.0)
    inner, outer, found = tmp_path / "inner.json", tmp_path / "outer.json", list[int]()

    def measure() -> None:
        found.append(measured_once(outer, (3, 4), lambda: 1 + measured_once(inner, (2, 3), lambda: 2)))

    # one that waits for itself must not keep the tests
    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    thread.join(30)
    assert found == [3]
    assert [json.loads(path.read_text()) for path in (inner, outer)] == [2, 3]


def test_what_is_kept_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_root", lambda: tmp_path)
    place, calls = tmp_path / "figure.json", list[int]()

    def measure() -> int:
        calls.append(1)
        return 5

    assert [measured_once(place, (5, 6), measure) for _ in range(2)] == [5, 5]
    place.write_text("7")
    assert measured_once(place, (5, 6), measure) == 5
    assert len(calls) == 2
