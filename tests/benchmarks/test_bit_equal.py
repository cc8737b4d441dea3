"""What the benchmark of bits counts, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bit_equal import Found, main
from spec_sdk.testing.answers_by_bits import Answered
from tests.support.text_checkpoints import write_text_checkpoint


def test_rows_count_up_to_a_token_that_differs() -> None:
    found = Found()
    found.add(Answered([1, 2, 3], [b"a", b"b", b"c"]), Answered([1, 2, 3], [b"a", b"b", b"c"]))
    found.add(Answered([1, 2, 3], [b"a", b"x", b"c"]), Answered([1, 2, 3], [b"a", b"b", b"c"]))
    found.add(Answered([1, 4, 3], [b"a", b"x", b"c"]), Answered([1, 2, 3], [b"a", b"b", b"d"]))
    assert found.as_data() == {
        "answers": 3,
        "equal": 1,
        "same_tokens": 2,
        "tokens": 9,
        "same_rows": 3 + 2 + 1,
        "rows_compared": 3 + 3 + 2,
    }


def test_both_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_checkpoint(tmp_path, hidden_size=64, num_attention_heads=4, intermediate_size=96, num_hidden_layers=3)
    output = tmp_path / "out.json"
    shared = ["--count", "2", "--new-tokens", "6", "--pipelines", "prompt_lookup", "--output", str(output)]
    overrides = [f"model.target={tmp_path}", "backend=cpu", "model.dtype=bfloat16"]
    monkeypatch.setattr("sys.argv", ["bit_equal", "proof", *shared, *overrides])
    assert main() == 0
    report = json.loads(output.read_text())
    assert report["overrides"][-1] == "deterministic=true" and report["prompts"] == 2
    found = report["pipelines"]["prompt_lookup"]
    assert found["equal"] == found["answers"] == 2 and found["same_rows"] == found["tokens"] == 12
    monkeypatch.setattr("sys.argv", ["bit_equal", "cost", "--rounds", "1", *shared, *overrides])
    assert main() == 0
    report = json.loads(output.read_text())
    assert set(report["pipelines"]) == {"vanilla", "prompt_lookup"}
    for row in report["pipelines"].values():
        assert row["both_s_ordinary"] > 0 and row["both_cpu_s_ratio"] > 0
