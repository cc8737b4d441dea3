"""Runs the GPU tests and benchmarks of the project within a budget of seconds, the most valuable first.

    make gpu                                  # what fits into 540 s
    make gpu ARGS="--budget 1800"             # what fits into half an hour
    make gpu ARGS="--only tree_attention"     # some steps
    make gpu ARGS="--resume"                  # go on: what has not passed yet
    make gpu ARGS="--plan"                    # say what would run; needs no GPU
    make gpu ARGS="--smoke"                   # small runs on the CPU, to see that the steps' commands work

Each step is a process group of its own, which gets at most what is left. After every step the report, the table and an
archive of all results are written to ``benchmarks/results/gpu-<device>/``, and copied to ``$OUT`` where that is set.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu import kit, report
from benchmarks.gpu.running import end_on_signals, run_step
from benchmarks.gpu.steps import STEPS, Step

BEGAN = time.monotonic()
BUDGET_S = 540.0
RESERVE_S = 10.0
"""Kept back from the steps: a killed step has to end, and the last archive be written."""
UNFINISHED = ("failed", "timed out")


def run_suite(
    steps: Sequence[Step],
    directory: Path,
    device: str,
    environment: Mapping[str, str],
    *,
    deadline: float,
    resume: Path | None = None,
    out: Path | None = None,
    on_cpu: bool = False,
) -> int:
    """Run ``steps`` until ``deadline`` (by ``time.monotonic``); returns 1 if one failed or timed out, else 0.

    ``resume``: an earlier report, whose passed steps are not run again, and whose failed ones come last. ``out``: where
    results are copied that have to come back.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sources = report.digest_of_sources()
    content = report.read(resume or directory / report.NAME, device)
    done = content["steps"]
    if resume is None:
        for step in steps:
            done.pop(step.name, None)
    values = {
        "results": str(directory),
        "model": str(kit.model() or ""),
        "prompts": str(kit.prompts()),
    }
    for step in sorted(steps, key=lambda step: done.get(step.name, {}).get("status") in UNFINISHED):
        before = done.get(step.name, {})
        if before.get("status") == "passed":
            changed = "" if before.get("sources") == sources else ", before the sources changed"
            print(f"==> {step.name}: passed in an earlier call{changed}", flush=True)
            continue
        left = deadline - time.monotonic()
        if left < step.least_s:
            reason = f"{max(0.0, left):.0f} s left, it needs {step.least_s}: --resume, or --only {step.name}"
            print(f"==> {step.name}: skipped: {reason}", flush=True)
            if before.get("status") not in UNFINISHED:
                done[step.name] = {"status": "skipped", "reason": reason, "seconds": 0.0, "output": ""}
                report.write(content, directory)
            continue
        limit_s = min(step.limit_s, left)
        print(f"==> {step.name} (expected {step.expected_s} s, at most {limit_s:.0f}; {left:.0f} s left)", flush=True)
        result = run_step(step, limit_s, directory, environment, values, on_cpu)
        done[step.name] = {**result, "sources": sources}
        report.write(content, directory)
        if out is not None:
            report.bring_back(directory, (step.name for step in steps), out)
        print(result["output"] if result["status"] != "left out" else result["reason"], flush=True)
    report.write(content, directory)
    if out is not None:
        report.bring_back(directory, (step.name for step in steps), out)
    results = {step.name: done[step.name] for step in steps}
    print(
        f"\n{device}, sources {sources}\n{report.table(results)}\nresults in {directory}{f' and {out}' if out else ''}"
    )
    return int(any(result["status"] in UNFINISHED for result in results.values()))


def plan(steps: Sequence[Step], budget_s: float) -> str:
    """The order, and what of it is expected to fit."""
    lines = [f"{'step':24}{'value/s':>8}{'expected':>10}{'least':>7}{'limit':>7}  in a budget of {budget_s:.0f} s"]
    left = budget_s - RESERVE_S
    for step in steps:
        fits = left >= step.least_s
        takes = min(step.expected_s, left) if fits else 0.0
        left -= takes
        said = "skipped" if not fits else "runs" if takes == step.expected_s else f"runs, cut off after {takes:.0f} s"
        row = f"{step.value / step.expected_s:>8.2f}{step.expected_s:>10}{step.least_s:>7}{step.limit_s:>7}"
        lines.append(f"{step.name:24}{row}  {said}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="make gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="default: %(default).0f")
    parser.add_argument("--only", metavar="STEP,…", help=f"run these steps: {', '.join(names)}")
    parser.add_argument(
        "--resume",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help=f"leave out what has passed by this earlier {report.NAME} (default: the one in the results)",
    )
    parser.add_argument(
        "--results", type=Path, help="directory of the results (default: benchmarks/results/gpu-DEVICE)"
    )
    parser.add_argument("--plan", action="store_true", help="say what would run, in order, and run nothing")
    parser.add_argument("--smoke", action="store_true", help="run the steps that can as small runs on the CPU")
    options = parser.parse_args(arguments)
    wanted = names if options.only is None else [name.strip() for name in options.only.split(",")]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"unknown step {unknown[0]!r}; there are {', '.join(names)}")
    if options.budget <= RESERVE_S:
        parser.error(f"--budget {options.budget:g}: {RESERVE_S:.0f} s of it are kept back to write results")
    if options.resume not in (None, Path()) and not options.resume.is_file():
        parser.error(f"--resume {options.resume}: there is no such file")
    options.steps = [step for step in STEPS if step.name in wanted]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.plan:
        print(plan(options.steps, options.budget))
        return 0
    if importlib.util.find_spec("torch") is None:
        print(f"error: {sys.executable} has no torch: make gpu PYTHON=... names one that has", file=sys.stderr)
        return 2
    import torch

    if not options.smoke and not torch.cuda.is_available():
        message = f"error: torch {torch.__version__} finds no CUDA device here; make gpu needs one"
        print(f"{message} (--plan and --smoke do not)", file=sys.stderr)
        return 2
    paths = [*kit.unpack(), os.environ.get("PYTHONPATH", "")]
    sys.path += [path for path in paths if path and path not in sys.path]
    # what it imports may come from the kit
    from spec_sdk.bench.machine import slug

    end_on_signals()
    device = "smoke run on the CPU" if options.smoke else torch.cuda.get_device_name(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "PYTHONUNBUFFERED": "1"}
    if options.smoke:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    directory = options.results or kit.ROOT / "benchmarks" / "results" / f"gpu-{slug(device)}"
    out = os.environ.get("OUT")
    print(f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    return run_suite(
        options.steps,
        directory.resolve(),
        device,
        environment,
        deadline=BEGAN + options.budget - RESERVE_S,
        resume=directory / report.NAME if options.resume == Path() else options.resume,
        out=Path(out) if out and Path(out).is_dir() else None,
        on_cpu=options.smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
