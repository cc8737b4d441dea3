"""``task=report``: what it writes, what it says of partial runs, and one line for every bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from tests.support.run_records import bench_records, write_bench, write_generate

Cli = Callable[..., Result]


def test_it_writes_the_page_the_markdown_and_traces(cli: Cli, tmp_path: Path) -> None:
    write_bench(tmp_path / "a")
    write_generate(tmp_path / "b, c")
    result = cli("task=report", "task.runs=[a,'b, c']", "output_dir=out", "task.title=Ours")
    assert result.status == 0
    assert result.out.split() == ["out/report.html", "out/report.md", "out/trace-1.json", "out/trace-2.json"]
    assert "<title>Ours</title>" in (tmp_path / "out/report.html").read_text()
    assert (tmp_path / "out/report.md").read_text().startswith("# Ours\n")
    assert json.loads((tmp_path / "out/trace-2.json").read_text())["traceEvents"]


def test_one_directory_needs_no_list(cli: Cli, tmp_path: Path) -> None:
    write_bench(tmp_path / "a")
    assert cli("task=report", "task.runs=a", "output_dir=out").status == 0


def test_partial_runs_are_told(cli: Cli, tmp_path: Path) -> None:
    records = bench_records(["vanilla", "suffix"])
    write_bench(tmp_path / "a", [r for r in records if r.get("prompt") != "82" or r["candidate"] == "vanilla"])
    result = cli("task=report", "task.runs=a", "output_dir=out")
    assert result.status == 0
    assert "note: run 1 (a): suffix has 22 of 24 answers" in result.err
    assert "Run 1 is partial: suffix has 22 of 24 answers." in (tmp_path / "out/report.html").read_text()


def test_another_baseline(cli: Cli, tmp_path: Path) -> None:
    write_bench(tmp_path / "a")
    assert cli("task=report", "task.runs=a", "task.baseline=llama.cpp", "output_dir=out").status == 0
    assert "baseline: llama.cpp of run 1" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "task.runs: name the directories of runs"),
        (["task.runs=[]"], "task.runs: [] must be a directory or a list of them"),
        (["task.runs=[1]"], "task.runs: [1] must be a directory or a list of them"),
        (["task.runs=gone"], "task.runs: gone is not there"),
        (["task.runs=file"], "task.runs: file is a file"),
        (["task.runs=empty"], "task.runs: empty has no run"),
        (["task.runs=estimate"], "is of no sweep: it has no jobs"),
        (["task.runs=a", "task.baseline=sufix"], "no run has a candidate 'sufix', did you mean 'suffix'?"),
        (["task.runs=a", "task.cycles=0"], "task.cycles: 0 must be"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, tmp_path: Path, arguments: list[str], told: str) -> None:
    write_bench(tmp_path / "a")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "estimate").mkdir()
    (tmp_path / "estimate/summary.json").write_text("{}")
    result = cli("task=report", *arguments, "output_dir=out")
    assert result.status == 2
    assert told in result.error
    assert not (tmp_path / "out").exists()
