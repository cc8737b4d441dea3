"""What the GPU suite measures of captured passes, on a tiny model in the interpreter: every part runs and agrees."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import graph_steps

PARTS = [
    "verdict",
    # these interpret hundreds of blocks
    pytest.param("lists", marks=pytest.mark.full),
    pytest.param("levels", marks=pytest.mark.full),
    pytest.param("drawn_levels", marks=pytest.mark.full),
    pytest.param("recovery", marks=pytest.mark.full),
]
TINY = ["--device=cpu", "--shape=tiny", "--prefix=40", "--rounds=1"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_agrees_with_its_baseline(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "graph_steps.json"
    assert graph_steps.main([*TINY, f"--parts={part}", f"--output={output}"]) == 0
    report = json.loads(output.read_text())
    assert report["left_out"] == {} and part.partition("_")[0] in capsys.readouterr().out
    if part == "verdict":
        assert report["verdict"]["same"] is True
        assert set(report["verdict"]["wall_ms"]) == {"pass alone", "after the graph", "in the graph"}
        assert set(report["verdict"]["cycle_ms"]) == {"after", "inside"}
        assert set(report["verdict"]["host_us"]) == {"8 nodes", "64 nodes"}
    elif part == "levels":
        assert report["levels"]["same"] is True and set(report["levels"]["wall_ms"]) == {"level by level", "at once"}
    elif part == "drawn_levels":
        assert set(report[part]) == {"plain", "filtered"}
        for figures in report[part].values():
            assert figures["equal"] == 1 and set(figures["wall_ms"]) == {"level by level", "at once"}
    elif part == "lists":
        assert all(one["off_by"] == 0 for one in report["lists"])
    else:
        assert max(report["recovery"]["off_by"].values()) < 1e-4


def test_a_part_that_fails_leaves_the_others_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph_steps, "of_lists", broken)
    monkeypatch.setattr(graph_steps, "of_verdict", broken)
    monkeypatch.setattr(graph_steps, "of_levels", broken)
    monkeypatch.setattr(graph_steps, "of_drawn_levels", lambda *arguments: {})
    monkeypatch.setattr(graph_steps, "of_recovery", lambda *arguments: {"off_by": {}, "wall_ms": {}})
    report = graph_steps.measure(parsed(tmp_path))
    assert set(report["left_out"]) == {"lists", "levels", "verdict"} and "capturing" in report["left_out"]["lists"]
    assert report["recovery"] == {"off_by": {}, "wall_ms": {}}
    late = graph_steps.measure(parsed(tmp_path, seconds=-1.0))
    assert set(late["left_out"]) == set(graph_steps.PARTS) and "were spent" in late["left_out"]["verdict"]


def parsed(tmp_path: Path, seconds: float = 100.0) -> argparse.Namespace:
    values = {"device": "cpu", "shape": "tiny", "prefix": 20, "rounds": 1, "parts": graph_steps.PARTS}
    return argparse.Namespace(**values, seconds=seconds, output=tmp_path / "graph_steps.json")
