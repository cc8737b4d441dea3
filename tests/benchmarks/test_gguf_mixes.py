"""``benchmarks.gguf_mixes`` on a tiny model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gguf_mixes
from benchmarks.support.gemma4_shape import Gemma4Shape
from benchmarks.support.shapes import SHAPES

SMALL: dict[str, Any] = {"hidden": 256, "inner": 512, "layers": 8, "heads": 4, "kv_heads": 2, "vocabulary": 1024}


@pytest.mark.parametrize("name", list(SHAPES))
def test_files_in_few_bits_beside_dense_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[name]
    gains = {gain: 256 if dims == shape.hidden else dims for gain, dims in shape.gains.items()}
    few: dict[str, Any] = {"experts": 6, "per_token": 2} if shape.experts else {}
    if isinstance(shape, Gemma4Shape):
        # of eight layers the first five make K and V, the last of them without a window
        few["shared"] = 3
    monkeypatch.setitem(SHAPES, name, replace(shape, gains=gains, **SMALL, **few))
    output = tmp_path / "mixes.json"
    mixes = [f"--shape={name}", "--mixes", "Q4_0", "Q5_K_M"]
    options = ["--rounds=2", "--new-tokens=6", "--seconds=0.05", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["gguf_mixes", *mixes, *options])
    assert gguf_mixes.main() == 0
    found = json.loads(output.read_text(encoding="utf-8"))["mixes"]
    assert list(found) == ["Q4_0", "Q5_K_M"]
    for mix in found.values():
        assert mix["tokens_per_s"].keys() == mix["mib"].keys() - {"file"} == {"few bits", "dense"}
        assert mix["prompt_s"].keys() == {"few bits", "dense"}
        assert mix["ratio"].keys() == {"dense"} and mix["passes"].keys() == {"2", "4", "8"}
        assert mix["mib"]["few bits"] < mix["mib"]["dense"] / 2
