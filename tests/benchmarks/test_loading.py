"""``benchmarks.loading`` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import loading
from tests.support.text_checkpoints import write_text_checkpoint


def test_a_model_is_opened_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_checkpoint(tmp_path / "model")
    options, output = f"model.target={tmp_path / 'model'} model.dtype=float32 model.weights=dense", tmp_path / "l.json"
    monkeypatch.setattr(sys, "argv", ["loading", options, "--rounds=1", f"--output={output}"])
    assert loading.main() == 0
    [(case, found)] = json.loads(output.read_text(encoding="utf-8"))["cases"].items()
    assert case == options and found["now"]["seconds"] > 0 and found["now"]["weights_mib"] > 0
    assert "before" not in found and "ratio" not in found
