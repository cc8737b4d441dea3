"""Sweeps on Ray, by Hydra's launcher for it; skipped where that is not installed (the extra ``ray``)."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.tiny_checkpoints import write_checkpoint

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None,
    reason="needs the extra ray",
)
CONTEXT = 8192
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(own_directory: Path) -> Iterator[Start]:
    """Start a sweep of a small model with one core for Ray. Whatever it left running ends with the test."""
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", max_position_embeddings=CONTEXT)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    running = []

    # not a test's directory: the paths of sockets are short
    with tempfile.TemporaryDirectory(prefix="ray-") as scratch:

        def started(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "spec_sdk", "-m", "hydra/launcher=ray", "output_dir=out", *arguments]
            command += ["+hydra.launcher.ray.init.num_cpus=1", f"+hydra.launcher.ray.init._temp_dir={scratch}"]
            command += ["pipeline=vanilla", "model.target=model", "prompt=a", "ignore_eos=true"]
            errors = (own_directory / "stderr").open("w")
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment))
            return running[-1]

        yield started
        for process in running:
            process.kill()


def until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not happened():
        assert process.poll() is None, Path("stderr").read_text()
        time.sleep(0.05)


def summary() -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(Path("out/summary.json").read_text())["jobs"]
    return jobs


def test_ray_keeps_table_summary_and_status_and_is_gone_at_the_end(start: Start) -> None:
    process = start("max_new_tokens=3,-1,5")
    helpers: set[psutil.Process] = set()
    while process.poll() is None:
        helpers |= set(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.2)
    told = Path("stderr").read_text()
    assert process.returncode == 2, told
    assert "Traceback" not in told
    fails = "max_new_tokens: -1 must be 1 or more"
    assert [(job["status"], job["error"]) for job in summary()] == [(0, None), (2, fails), (0, None)]
    assert [job["summary"]["new_tokens"] for job in summary() if job["status"] == 0] == [3, 5]
    # the jobs have been heard by then
    assert told.index(f"error: {fails}") < told.index("3 jobs in out")
    metrics = json.loads(Path("out/0-max_new_tokens=3/metrics.json").read_text())
    assert metrics["machine"]["hardware"].endswith(" 1 threads")
    assert helpers and not psutil.wait_procs(helpers, timeout=20)[1]
    assert sorted(path.name for path in Path("out").iterdir() if path.is_file()) == ["multirun.yaml", "summary.json"]


def test_a_sweep_that_is_ended_keeps_the_jobs_that_ran_and_what_the_one_that_runs_has(start: Start) -> None:
    process = start(f"max_new_tokens=3,{CONTEXT - 1}")
    until(lambda: any(Path("out").glob("1-*/.events.jsonl.*.partial")), process)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, Path("stderr").read_text()
    assert [(job["status"], job["error"]) for job in summary()] == [(0, None), (143, "terminated")]
    assert summary()[1]["summary"]["new_tokens"] > 0
    assert not any(Path("out").rglob("*.partial"))


def test_more_cores_than_there_are_is_one_line(start: Start) -> None:
    process = start("+hydra.launcher.ray.remote.num_cpus=2", "max_new_tokens=3,5")
    assert process.wait(60) == 2
    told = Path("stderr").read_text()
    assert "error: hydra.launcher.ray.remote.num_cpus: 2 for a job, and Ray has 1 here" in told
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("+hydra.launcher.ray.init.address=127.0.0.1:1", "init.address: nobody answers at 127.0.0.1:1"),
        ("+hydra.launcher.ray.remote.num_cpus=banana", "remote.num_cpus: 'banana' is no number"),
    ],
)
def test_what_ray_cannot_use_is_one_line(option: str, told: str, start: Start) -> None:
    process = start(option, "max_new_tokens=3,5")
    assert process.wait(30) == 2
    assert f"error: hydra.launcher.ray.{told}" in Path("stderr").read_text()
