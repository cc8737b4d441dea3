"""The benchmark of layer-parallel drafting: it runs, and its aim is judged by the right figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.layer_parallel import AIM, aims, main


def test_a_quick_run_times_every_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.json"
    options = ["--quick", "--device=cpu", "--shapes", "tiny", "--prefix=16", f"--output={output}"]
    assert main(options) == 0
    report = json.loads(output.read_text())
    [case] = report["cases"]
    variants = [f"{name} {size}" for size in (1, 4) for name in ("unfused", "fused", "fused, separate products")]
    assert set(case["eager_ms"]) == {"sequential", *variants} and min(case["eager_ms"].values()) > 0
    assert case["largest_difference"] < 1e-4 and report["shapes"]["tiny"]["strategies"]["4"]
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines() if " eager " in line] == [
        ["1", "eager", "1"],
        ["1", "eager", "4"],
    ]
    assert report["aims"][0]["result"] == "not measured here"


def case(ratio: float, **changed: Any) -> dict[str, Any]:
    return {"shape": "1b", "nodes": 1, "captured_ms": {"sequential": ratio, "fused 4": 1.0}} | changed


def test_the_aim_is_one_node_of_the_1b_shape_captured() -> None:
    others = [case(9.0, shape="8b"), case(9.0, nodes=4), case(9.0, captured_ms={})]
    assert [aims([*others, case(ratio)])[0]["result"] for ratio in (AIM, AIM - 0.01)] == ["met", "missed"]
    assert aims(others)[0]["result"] == "not measured here"
