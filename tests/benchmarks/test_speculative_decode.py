"""The benchmark of speculative flash decode: it runs, and its aim is judged by the right figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speculative_decode import AIM, aims, main


def test_a_quick_run_writes_figures_of_every_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.json"
    assert (
        main(["--quick", "--device", "cpu", "--contexts", "300", "--dtypes", "float32", "--output", str(output)]) == 0
    )
    report = json.loads(output.read_text())
    (run,) = report["attention"]
    entry = run["contexts"]["300"]
    assert set(entry["us"]) == {"plain", "plain again", "sdpa", "whole 128", "separate 128"}
    assert all(value > 0 for value in entry["us"].values())
    assert 0 <= entry["difference"] < 1e-4
    assert "whole" in capsys.readouterr().out
    assert report["aims"][0].endswith("not measured")


def run(ratios: dict[int, float], **changed: str) -> dict[str, Any]:
    contexts = {str(c): {"us": {"plain": 10.0, "whole 128": 10 * r, "pieces 128": 99.0}} for c, r in ratios.items()}
    return {"attention": [{"device": "cuda", "shape": "8b", **changed, "contexts": contexts}]}


def test_the_aim_is_the_worst_of_the_long_contexts() -> None:
    assert aims(run({1024: 2.0, 8192: 1.0, 16384: AIM}))[0].endswith(f"worst {AIM:.3f}, met")
    assert aims(run({1024: 1.0, 8192: 1.03}))[0].endswith("worst 1.030, missed")
    assert aims(run({1024: 1.0}))[0].endswith("not measured")
    assert aims(run({8192: 1.0}, device="cpu"))[0].endswith("not measured")
    assert aims(run({8192: 1.0}, shape="smollm2"))[0].endswith("not measured")
