"""``benchmarks.gguf_mixes`` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gguf_mixes
from benchmarks.support import random_gguf

SHAPE = {"HIDDEN": 256, "INNER": 512, "LAYERS": 8, "HEADS": 4, "KV_HEADS": 2, "VOCABULARY": 1024}


def test_files_in_few_bits_beside_dense_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SHAPE.items():
        monkeypatch.setattr(random_gguf, name, size)
    output = tmp_path / "mixes.json"
    mixes = ["--mixes", "Q4_0", "Q5_K_M"]
    options = ["--rounds=2", "--new-tokens=6", "--seconds=0.05", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["gguf_mixes", *mixes, *options])
    assert gguf_mixes.main() == 0
    found = json.loads(output.read_text(encoding="utf-8"))["mixes"]
    assert list(found) == ["Q4_0", "Q5_K_M"]
    for mix in found.values():
        assert mix["tokens_per_s"].keys() == mix["mib"].keys() - {"file"} == {"few bits", "dense"}
        assert mix["ratio"].keys() == {"dense"} and mix["passes"].keys() == {"2", "4", "8"}
        assert mix["mib"]["few bits"] < mix["mib"]["dense"] / 2
