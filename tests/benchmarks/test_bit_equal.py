"""What the benchmark of bits counts, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bit_equal import Found, main
from spec_sdk.errors import UserError
from spec_sdk.testing.answers_by_bits import Answered, serve
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


def test_a_proof_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared later are other prompts; a report of something else is not gone on with."""
    write_text_checkpoint(tmp_path, hidden_size=64, num_attention_heads=4, intermediate_size=96, num_hidden_layers=3)
    output, answered = tmp_path / "out.json", list[tuple[int, ...]]()

    def noted(engine: Any, prompts: Any, new_tokens: int) -> Any:
        answered.extend(tuple(prompt) for prompt in prompts)
        return serve(engine, prompts, new_tokens)

    monkeypatch.setattr("benchmarks.bit_equal.serve", noted)
    options = ["--count", "6", "--together", "2", "--new-tokens", "4", "--pipelines", "prompt_lookup", "--resume"]
    overrides = ["--output", str(output), f"model.target={tmp_path}", "backend=cpu"]
    monkeypatch.setattr(
        "benchmarks.bit_equal.time.perf_counter", iter([0.0, 0.0, 1.0, 2.0, 9.0, *[9.0] * 1000]).__next__
    )
    monkeypatch.setattr("sys.argv", ["bit_equal", "proof", *options, "--seconds", "5", *overrides])
    assert main() == 0
    first = json.loads(output.read_text())
    assert first["of_prompts"] == 6 and 0 < first["prompts"] < 6
    monkeypatch.setattr("sys.argv", ["bit_equal", "proof", *options, *overrides])
    assert main() == 0
    report = json.loads(output.read_text())
    assert report["prompts"] == report["pipelines"]["prompt_lookup"]["equal"] == 6
    assert report["seconds"] >= first["seconds"]
    # by plain decoding and by the pipeline, each prompt once
    assert len(answered) == 12 and len(set(answered)) == 6
    monkeypatch.setattr("sys.argv", ["bit_equal", "proof", *options, *overrides, "model.dtype=bfloat16"])
    with pytest.raises(UserError, match=r"^--resume: .*out.json has dtype float32, this run bfloat16; name another"):
        main()
    output.write_text("[]")
    with pytest.raises(UserError, match=r"is no report of a proof; leave --resume out to write it anew$"):
        main()
