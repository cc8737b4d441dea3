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
    (entry,) = report["cases"]
    assert (entry["context"], entry["dtype"], entry["queries"]) == (300, "float32", 1)
    assert set(entry["us"]) == {"plain", "plain again", "sdpa", "whole 128", "separate 128"}
    assert all(value > 0 for value in entry["us"].values())
    assert 0 <= entry["difference"] < 1e-4
    assert "whole" in capsys.readouterr().out
    assert report["aims"][0]["result"] == "not measured here"


def judged(ratios: dict[int, float], **changed: str) -> tuple[str, str]:
    head: dict[str, Any] = {"device": "cuda", "shape": "8b", **changed}
    times = {context: {"plain": 10.0, "whole 128": 10 * ratio, "pieces 128": 99.0} for context, ratio in ratios.items()}
    (found,) = aims([{**head, "context": context, "us": us} for context, us in times.items()])
    return found["result"], found["figure"]


def test_the_aim_is_the_worst_of_the_long_contexts() -> None:
    assert judged({1024: 2.0, 8192: 1.0, 16384: AIM}) == ("met", f"worst {AIM:.3f}")
    assert judged({1024: 1.0, 8192: 1.03}) == ("missed", "worst 1.030")
    for nothing in (judged({1024: 1.0}), judged({8192: 1.0}, device="cpu"), judged({8192: 1.0}, shape="smollm2")):
        assert nothing == ("not measured here", "needs an NVIDIA GPU")
