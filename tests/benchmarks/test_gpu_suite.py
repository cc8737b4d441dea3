"""The GPU suite's bookkeeping, on steps that need no GPU."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import benchmarks.gpu.__main__ as suite
from benchmarks.gpu import kit
from benchmarks.gpu.steps import STEPS, Step

PASSES = Step("passes", ("-c", "print('some figures'); print('the last line')"), 30)
FAILS = Step("fails", ("-c", "raise SystemExit('it broke')"), 30)
NEEDS_MORE = Step("needs_more", ("-c", "1/0"), 30, needs=("no_such_module",))


@pytest.fixture(autouse=True)
def empty_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kit directory of our own, and a commit that does not change under us."""
    monkeypatch.setattr(kit, "KIT", tmp_path / "kit")
    monkeypatch.setattr(suite, "commit", lambda: "abc")
    return tmp_path / "kit"


def run(steps: list[Step], results: Path, resume: bool = False) -> int:
    return suite.run_suite(steps, results, "Some GPU", resume=resume, environment=dict(os.environ))


def report(results: Path) -> dict[str, dict[str, str]]:
    content = json.loads((results / "suite.json").read_text())
    assert content["schema_version"] == suite.SCHEMA_VERSION
    assert content["device"] == "Some GPU"
    steps: dict[str, dict[str, str]] = content["steps"]
    return steps


def test_every_step_is_reported_and_a_table_comes_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([PASSES, FAILS, NEEDS_MORE], tmp_path) == 1
    steps = report(tmp_path)
    assert [steps[name]["status"] for name in ("passes", "fails", "needs_more")] == ["passed", "failed", "left out"]
    assert "it broke" in steps["fails"]["output"]
    assert "no_such_module" in steps["needs_more"]["reason"]
    table = capfd.readouterr().out.splitlines()[-5:]
    assert table[0].split() == ["step", "status", "seconds", "last", "line"]
    assert table[1].endswith("the last line")


def test_what_is_left_out_is_no_failure(tmp_path: Path) -> None:
    assert run([PASSES, NEEDS_MORE], tmp_path) == 0


def test_a_step_over_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    child = f"import pathlib, time; time.sleep(3); pathlib.Path({str(tmp_path / 'survived')!r}).touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    started = time.monotonic()
    assert run([Step("slow", ("-c", parent), 1)], tmp_path) == 1
    assert report(tmp_path)["slow"]["status"] == "timed out"
    time.sleep(max(0.0, 5 - (time.monotonic() - started)))
    assert not (tmp_path / "survived").exists()


def test_resuming_runs_only_what_has_not_passed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    count = Step("count", ("-c", f"open({str(trace)!r}, 'a').write('x')"), 30)
    run([count], tmp_path)
    run([count], tmp_path, resume=True)
    assert trace.read_text() == "x"
    run([count], tmp_path)
    assert trace.read_text() == "xx"


def test_another_devices_report_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text(json.dumps({"schema_version": 1, "device": "Other", "steps": {"x": {}}}))
    run([PASSES], tmp_path)
    assert list(report(tmp_path)) == ["passes"]


def test_the_model_is_joined_once_all_parts_are_there(empty_kit: Path) -> None:
    directory = empty_kit / "model"
    directory.mkdir(parents=True)
    (directory / "m.gguf.part2of2").write_bytes(b"world")
    assert kit.model() is None
    (directory / "m.gguf.part1of2").write_bytes(b"hello ")
    joined = kit.model()
    assert joined is not None and joined.name == "m.gguf" and joined.read_bytes() == b"hello world"


def test_the_kit_announces_the_plugins(empty_kit: Path) -> None:
    site = Path(kit.unpack()[-1])
    assert "drafters = spec_sdk_drafters" in (site / "spec_sdk-0.0.0.dist-info" / "entry_points.txt").read_text()


def test_the_steps_files_exist() -> None:
    for step in STEPS:
        for part in step.command:
            if part.startswith(("tests/", "benchmarks/")):
                assert (kit.ROOT / part).exists(), f"{step.name}: {part}"
            if part.startswith("benchmarks."):
                assert (kit.ROOT / (part.replace(".", "/") + ".py")).exists(), f"{step.name}: {part}"
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_the_steps_are_documented() -> None:
    page = (kit.ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [step.name for step in STEPS if step.name not in rows] == []
