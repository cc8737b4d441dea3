"""ALSpec's tables by the LM Evaluation Harness: scores are the harness's own, of every setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from benchmarks import alspec_tables


def test_benchmarks_are_scored_by_the_harness(
    benchmarks: Path,
    own_directory: Path,
    model: tuple[Path, PreTrainedModel],
    harness: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["--thresholds", "0", "--calibration=0", "--size=2", "--output=report.json", "--include-path=tasks"]
    argv = ["alspec_tables", *options, f"model.target={model[0]}", "--benchmarks", "tiny_generate", "tiny_choose"]
    monkeypatch.setattr("sys.argv", argv)
    assert alspec_tables.main() == 0
    report: dict[str, Any] = json.loads((own_directory / "report.json").read_text())
    rows = {row["setting"]: row["tasks"] for row in report["rows"]}
    assert set(rows) == {"baseline", "λ = 0", "λ = inf"}
    # one of three answers is the model's own, with nothing replaced as without speculation
    assert rows["baseline"]["tiny_generate"]["score"] == pytest.approx(1 / 3) == rows["λ = 0"]["tiny_generate"]["score"]
    assert rows["baseline"]["tiny_generate"]["replaced"] is None
    for task in ("tiny_generate", "tiny_choose"):
        assert rows["λ = 0"][task]["replaced"] == 0 and rows["λ = inf"][task]["replaced"] == 1
        assert rows["λ = 0"][task]["questions"] == 3
