"""Runs one step as a process group of its own, and leaves nothing of it behind."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu import kit
from benchmarks.gpu.steps import Step

KEPT_OUTPUT = 8000
"""Characters of a step's output that the report keeps, from its end; all of it is in the step's own log."""
OF_THE_LIMIT = 0.8
"""The part of its limit in which a benchmark begins new cases: the last one has to end, and results be written."""
MOST_WORKERS = 12
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl."""


def run_step(
    step: Step,
    limit_s: float,
    directory: Path,
    environment: Mapping[str, str],
    values: Mapping[str, str],
    on_cpu: bool = False,
) -> dict[str, Any]:
    """Run one step for at most ``limit_s``; its output goes to ``NAME.log`` in ``directory``.

    Returns status passed, failed, timed out or left out, with the seconds taken and the end of the output. When this
    returns, or raises because the suite itself is interrupted, no process of the step's group is left.
    """
    reason = why_left_out(step, environment, values, on_cpu)
    if reason:
        return {"status": "left out", "reason": reason, "seconds": 0.0, "output": ""}
    values = {**values, "workers": str(workers()), "seconds": str(int(limit_s * OF_THE_LIMIT))}
    arguments = [part.format(**values) for part in (*step.command, *((step.on_cpu or ()) if on_cpu else ()))]
    log = directory / f"{step.name}.log"
    shutil.rmtree(directory / step.name, ignore_errors=True)
    started = time.monotonic()
    with log.open("wb") as output:
        # a group, to be killed as one, but not a session: whoever ends the suite's session ends the step too
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=kit.ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=functools.partial(end_with, os.getpid(), ctypes.CDLL(None)),
        )
        try:
            status = "passed" if process.wait(limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "timed out"
        finally:
            kill_group(process)
    said = log.read_text(encoding="utf-8", errors="replace")[-KEPT_OUTPUT:]
    seconds = round(time.monotonic() - started, 1)
    return {"status": status, "command": arguments, "limit_s": round(limit_s), "seconds": seconds, "output": said}


def end_with(suite: int, c_library: ctypes.CDLL) -> None:
    """Have the system end this process, a step, when the suite ends: one that is killed cannot end its step itself."""
    c_library.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != suite:
        os._exit(1)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process's group, and wait a little for the process itself."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} was killed and does not end: its driver call may hang", file=sys.stderr)


def end_on_signals() -> None:
    """Have SIGTERM and SIGHUP end the suite as Ctrl-C does: with its step."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def workers() -> int:
    """Processes that tests take: one per core that this process may use, up to MOST_WORKERS."""
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0))))


def why_left_out(
    step: Step, environment: Mapping[str, str], values: Mapping[str, str], on_cpu: bool = False
) -> str | None:
    """What the step needs and this machine lacks."""
    if on_cpu and step.on_cpu is None:
        return "it has no small run on the CPU"
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    missing = [name for name in step.needs if not importable(name, paths)]
    if missing:
        return f"missing: {', '.join(missing)} (make gpu-kit gathers them)"
    if step.needs_model and not values["model"]:
        return "the kit's model is missing (make gpu-kit)"
    return None


def importable(name: str, paths: Sequence[str]) -> bool:
    """Whether ``import name`` would find a module, here or on ``paths``."""
    if importlib.util.find_spec(name) is not None:
        return True
    return any((Path(path) / name).is_dir() or (Path(path) / f"{name}.py").is_file() for path in paths if path)
