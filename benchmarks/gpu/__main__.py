"""Runs every GPU test and benchmark of the project, step by step, and prints a table last.

    make gpu                                  # all steps
    make gpu ARGS="--only tree_attention"     # some of them
    make gpu ARGS="--resume"                  # those that have not passed yet at this commit

Each step is a process of its own with a time limit. What it printed and how it ended is written to
``benchmarks/results/gpu-<device>/suite.json`` after every step, so an interrupted run keeps what it had; steps write
their own JSON beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import kit
from benchmarks.gpu.steps import STEPS, Step

SCHEMA_VERSION = 1
KEPT_OUTPUT = 8000
"""Characters of a step's output that are kept, from its end."""


def run_step(step: Step, environment: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Run one step; status passed, failed, timed out or left out, with its seconds and the end of its output."""
    reason = why_left_out(step, environment, values)
    if reason:
        return {"status": "left out", "reason": reason, "seconds": 0.0, "output": ""}
    command = [sys.executable, *(part.format(**values) for part in step.command)]
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=kit.ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=step.limit_s)
        status = "passed" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        status = "timed out"
    finally:
        # the step's own children too
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    seconds = round(time.monotonic() - started, 1)
    return {"status": status, "command": command[1:], "seconds": seconds, "output": output[-KEPT_OUTPUT:]}


def why_left_out(step: Step, environment: Mapping[str, str], values: Mapping[str, str]) -> str | None:
    """What the step needs and this machine lacks."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    missing = [name for name in step.needs if not importable(name, paths)]
    if missing:
        return f"missing: {', '.join(missing)} (make gpu-kit gathers them)"
    if step.needs_model and not values["model"]:
        return "the kit's model is missing (make gpu-kit)"
    if step.needs_model and not values["prompts"]:
        return "the kit's prompts are missing (make gpu-kit)"
    return None


def importable(name: str, paths: Sequence[str]) -> bool:
    """Whether ``import name`` would find a module, here or on ``paths``."""
    if importlib.util.find_spec(name) is not None:
        return True
    return any((Path(path) / name).is_dir() or (Path(path) / f"{name}.py").is_file() for path in paths if path)


def commit() -> str:
    """The checkout's commit, with a mark if it has changes; 'unknown' outside git."""
    try:
        git = ["git", "-C", str(kit.ROOT)]
        name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.strip() + ("+changes" if changes.strip() else "")


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One line per step: how it ended, its seconds, and the last line it printed."""
    lines = [f"{'step':24}{'status':12}{'seconds':>8}  last line"]
    for name, result in results.items():
        said = [line for line in result["output"].splitlines() if line.strip()]
        last = result.get("reason") or (said[-1].strip() if said else "")
        lines.append(f"{name:24}{result['status']:12}{result['seconds']:>8.1f}  {last[:120]}")
    return "\n".join(lines)


def run_suite(
    steps: Sequence[Step], results_directory: Path, device: str, *, resume: bool, environment: Mapping[str, str]
) -> int:
    """Run the steps in order; returns 1 if one failed or timed out, else 0."""
    results_directory.mkdir(parents=True, exist_ok=True)
    report_file = results_directory / "suite.json"
    here = commit()
    report = read_report(report_file, device)
    values = {
        "results": str(results_directory),
        "model": str(kit.model() or ""),
        "prompts": str(kit.prompts() or ""),
    }
    for step in steps:
        before = report["steps"].get(step.name, {})
        if resume and before.get("status") == "passed" and before.get("commit") == here != "unknown":
            print(f"==> {step.name}: passed before at {here}", flush=True)
            continue
        print(f"==> {step.name} (at most {step.limit_s} s)", flush=True)
        result = run_step(step, environment, values)
        report["steps"][step.name] = {**result, "commit": here}
        report_file.write_text(json.dumps(report, indent=1) + "\n")
        print(result["output"] if result["status"] != "left out" else result["reason"], flush=True)
    results = {step.name: report["steps"][step.name] for step in steps}
    print(f"\n{device}, {here}\n{table(results)}\nresults in {results_directory}")
    return int(any(result["status"] in ("failed", "timed out") for result in results.values()))


def read_report(path: Path, device: str) -> dict[str, Any]:
    """The report of an earlier run on this device, or a new one."""
    if path.is_file():
        try:
            report: dict[str, Any] = json.loads(path.read_text())
        except json.JSONDecodeError:
            report = {}
        if report.get("schema_version") == SCHEMA_VERSION and report.get("device") == device:
            return report
    return {"schema_version": SCHEMA_VERSION, "device": device, "steps": {}}


def main() -> int:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="STEP,…", help=f"run these steps: {', '.join(names)}")
    parser.add_argument("--resume", action="store_true", help="leave out steps that passed before at this commit")
    parser.add_argument(
        "--results", type=Path, help="directory of the results (default: benchmarks/results/gpu-DEVICE)"
    )
    arguments = parser.parse_args()
    wanted = names if arguments.only is None else [name.strip() for name in arguments.only.split(",")]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"unknown step {unknown[0]!r}; there are {', '.join(names)}")
    try:
        import torch
    except ModuleNotFoundError:
        print(f"error: {sys.executable} has no torch: make gpu PYTHON=... names one that has", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print(f"error: torch {torch.__version__} finds no CUDA device here; make gpu needs one", file=sys.stderr)
        return 2
    # imports torch, whose absence was told of above
    from benchmarks.support import machine

    device = torch.cuda.get_device_name(0)
    paths = [*kit.unpack(), os.environ.get("PYTHONPATH", "")]
    sys.path += [path for path in paths if path and path not in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "PYTHONUNBUFFERED": "1"}
    directory = arguments.results or kit.ROOT / "benchmarks" / "results" / f"gpu-{machine.slug(device)}"
    steps = [step for step in STEPS if step.name in wanted]
    print(f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    return run_suite(steps, directory.resolve(), device, resume=arguments.resume, environment=environment)


if __name__ == "__main__":
    sys.exit(main())
