"""What the benchmark of the KV cache's forms writes, on a tiny model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cache_forms
from tests.support.text_checkpoints import write_text_checkpoint

SHAPE: Any = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}


def test_the_whole_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_checkpoint(tmp_path / "model", **SHAPE)
    monkeypatch.setattr(cache_forms, "TOKENS", [1 + i % 40 for i in range(2048)])
    prompts = [{"turns": [f"a b {i} c d"], "task": "one"} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    output = tmp_path / "report.json"
    files = [f"--prompts={tmp_path / 'prompts.jsonl'}", f"--output={output}", f"model.target={tmp_path / 'model'}"]
    small = ["--count=3", "--seconds=0.01", "--prefixes", "5", "--nodes", "1", "3", "--lengths", "9"]
    monkeypatch.setattr("sys.argv", ["cache_forms.py", *files, "model.weights=int8", *small])
    assert cache_forms.main() == 0
    report = json.loads(output.read_text())
    assert list(report["passes"]) == ["1 nodes behind 5 tokens", "3 nodes behind 5 tokens"]
    assert list(report["prompts"]) == ["9 tokens"]
    assert report["bytes_of_a_token"]["bfloat16"] * 2 == report["bytes_of_a_token"]["exact"]
    distance = report["distance"]
    assert distance["mean_kl_divergence"]["reference"] == 0 < distance["mean_kl_divergence"]["bfloat16"] < 0.01
    assert all(1 < value < math.inf for value in distance["perplexity"].values())
