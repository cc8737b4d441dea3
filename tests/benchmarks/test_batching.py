"""The benchmark of batch sizes: it serves the same answers at each, and compares with the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import batching
from spec_sdk.errors import UserError
from tests.support.text_checkpoints import write_text_checkpoint


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["batching", *options])
    return batching.main()


def test_every_batch_size_and_pipeline_has_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text_checkpoint(tmp_path / "model")
    output = tmp_path / "report.json"
    options = ["--count=3", "--longest=300", "--new-tokens=4", "--rounds=1", "--dtype=float32", f"--output={output}"]
    options += ["--batches", "1", "2", "--pipelines", "vanilla", "prompt_lookup", "--without-transformers"]
    assert run(monkeypatch, *options, f"model.target={tmp_path / 'model'}") == 0
    report = json.loads(output.read_text())
    assert [each["batch"] for each in report["batches"]] == [1, 2] and len(report["prompts"]) == 3
    for each in report["batches"]:
        assert list(each["rivals"]) == ["vanilla", "prompt_lookup"]
        for row in each["rivals"].values():
            assert 0 < row["low"] <= row["tokens_per_s"] <= row["high"] and "over_transformers" not in row
            # float32: who sits beside a prompt changes nothing
            assert row["answers_equal_to_first_batch_size"] == 3
    assert all(row["over_first_batch_size"] == 1 for row in report["batches"][0]["rivals"].values())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows if row[0] in ("1", "2")] == [
        [batch, name] for batch in "12" for name in ("vanilla", "prompt_lookup")
    ]


def test_transformers_answers_with_the_default_target_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="add --without-transformers"):
        run(monkeypatch, "model.target=elsewhere")
