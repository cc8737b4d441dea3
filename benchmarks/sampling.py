"""Speculative sampling: time and memory of one verification step on a chain of γ drafted tokens.

    python benchmarks/sampling.py            # on the GPU if there is one, else on the CPU
    python benchmarks/sampling.py --quick    # a smoke run

Rivals get the same logits and tokens in one process, turn by turn; figures are medians over steps of several sets of
inputs. A step begins with drawn tokens and what drawing left behind, alike for all
(:mod:`benchmarks.support.sampling_rivals`):

- ``transformers``: ``transformers.generation.utils._speculative_sampling``, as its assisted generation calls it;
- ``reference``: our definition;
- ``exact``: the fused sampler, which gives the reference's tokens for the same random numbers;
- ``sigmoid``: the approximation of "Optimized speculative sampling", α = -1e4, β = 1e4, as our plugin does it: σ of
  drafted tokens, and of whole rows only after a rejection;
- ``published exact``, ``published sigmoid``: the paper's two algorithms, which work on all γ rows every step
  (:mod:`benchmarks.support.published_sampling`), the second also through ``torch.compile``, into one kernel.

Prints a table (ratio first: transformers' time over the rival's), writes ``results/sampling-<machine>.json`` and a plot
beside it, and says last which aims are met. Needs ``pip install 'spec-sdk[benchmarks,cuda]'``.

Legend: G = γ drafted tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# a checkout that is not installed will do
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "backends"))
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "samplers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "verifiers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.support import machine, plots
from benchmarks.support.published_sampling import Decide
from benchmarks.support.sampling_rivals import (
    COMPILED_SIGMOID,
    OURS,
    PUBLISHED_SIGMOID,
    RIVALS,
    Step,
    functions,
    peak_bytes,
    stepper,
    whole_step,
)
from benchmarks.support.timing import median_cpu, median_wall, own_clock
from spec_sdk.contracts import SamplingParams
from spec_sdk_samplers.reference import ReferenceSampler

ROOT = Path(__file__).parents[1]
SCHEMA_VERSION = 2
GAMMAS = (1, 2, 3, 5, 8, 10, 15, 20)
VOCABULARIES = (32_000, 49_152, 128_256, 262_144)
SAMPLED = SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)
INPUT_SETS = 8


def make_step(
    gamma: int, vocabulary: int, dtype: torch.dtype, device: torch.device, params: SamplingParams, seed: int
) -> Step:
    """Random logits of target and draft, and tokens drawn from the draft's law."""
    rng = torch.Generator().manual_seed(seed)
    target = 3 * torch.randn((gamma + 1, vocabulary), generator=rng)
    # so near that about two of three tokens are accepted
    draft = target[:-1] + 0.9 * torch.randn((gamma, vocabulary), generator=rng)
    q_GV = ReferenceSampler(None, params).probabilities(draft.to(dtype))
    token_G1 = torch.multinomial(q_GV, 1, generator=rng)
    q_G: list[float] = q_GV.gather(1, token_G1)[:, 0].tolist()
    return Step(draft.to(device, dtype), target.to(device, dtype), token_G1[:, 0].tolist(), q_G)


def rivals(steps: list[Step], params: SamplingParams, known: dict[str, Decide]) -> dict[str, Callable[[], object]]:
    """Calls that decide one step after the other. The functions of ``known`` take logits that no filter changed."""
    names = [name for name in (*RIVALS, COMPILED_SIGMOID) if name in OURS or (params == SAMPLED and name in known)]
    return {name: _next_step(name, steps, params, known) for name in names}


def _next_step(name: str, steps: list[Step], params: SamplingParams, known: dict[str, Decide]) -> Callable[[], object]:
    decide, count = stepper(name, steps, params, known), itertools.count()

    def call() -> object:
        seed = next(count)
        return decide(seed % len(steps), seed)

    return call


def measure(
    gamma: int,
    vocabulary: int,
    dtype: torch.dtype,
    device: torch.device,
    params: SamplingParams,
    seconds: float,
    known: dict[str, Decide],
) -> dict[str, Any]:
    steps = [make_step(gamma, vocabulary, dtype, device, params, seed) for seed in range(INPUT_SETS)]
    calls = rivals(steps, params, known)
    # rounding may move a border between two of 262,144 tokens; tests/samplers judges each such token in float64
    reference, exact = (stepper(name, steps, params, known) for name in ("reference", "exact"))
    differing = sum(reference(i, i) != exact(i, i) for i in range(len(steps)))
    if device.type == "cuda":
        # each of these calls waits for its verdict, so the time of a call is the time of a step
        times = median_wall(calls, rounds=60)
    else:
        times = median_cpu(calls, seconds, clock=own_clock(device))
    return {
        "gamma": gamma,
        "vocabulary": vocabulary,
        "dtype": str(dtype).removeprefix("torch."),
        "filters": "top-k 50, top-p 0.95" if params == FILTERED else None,
        "steps_compared": len(steps),
        "steps_in_which_exact_and_reference_differ": differing,
        "rivals": {
            name: {
                "seconds": times[name],
                "peak_bytes": peak_bytes(whole_step(name, steps[0], params, known), device),
            }
            for name in calls
        },
    }


def lines(case: dict[str, Any]) -> list[str]:
    base = case["rivals"].get("transformers") or case["rivals"]["reference"]
    shape = f"γ={case['gamma']} V={case['vocabulary']} {case['dtype']} {case['filters'] or ''}"
    return [
        f"{base['seconds'] / one['seconds']:7.2f}  {name:28}{one['seconds'] * 1e6:10.0f} us"
        f"{one['peak_bytes'] / 2**20:9.2f} MiB  {shape}"
        for name, one in case["rivals"].items()
    ]


def aims(report: dict[str, Any]) -> list[dict[str, str]]:
    plain = [case for case in report["cases"] if not case["filters"]]

    def share(case: dict[str, Any], name: str, beside: str) -> float:
        return float(case["rivals"][name]["seconds"] / case["rivals"][beside]["seconds"])

    def judged(name: str, beside: str, cases: list[dict[str, Any]]) -> tuple[str, str]:
        shares = sorted((share(case, name, beside), case["gamma"], case["vocabulary"]) for case in cases)
        worst, median = shares[-1], shares[len(shares) // 2][0]
        below = sum(value < 1 for value, *_ in shares)
        figure = f"faster in {below} of {len(shares)}, median {median:.2f} of its time, worst {worst[0]:.2f} "
        return ("met" if worst[0] < 1 else "missed"), figure + f"at γ={worst[1]} V={worst[2]}"

    found = []
    rows = [("exact", beside) for beside in ("reference", "transformers", PUBLISHED_SIGMOID)]
    if all(COMPILED_SIGMOID in case["rivals"] for case in plain):
        rows.append(("exact", COMPILED_SIGMOID))
    for name, beside in (*rows, ("exact", "sigmoid")):
        result, figure = judged(name, beside, plain)
        found.append({"aim": f"{report['device']}: {name} is faster than {beside}", "result": result, "figure": figure})
    asked = [case for case in plain if (case["gamma"], case["vocabulary"]) == (5, 128_256)]
    aim = "GPU: exact at least 95 % below transformers per step at V = 128,256, γ = 5"
    if report["device"] == "cuda" and asked:
        worst = max(share(case, "exact", "transformers") for case in asked)
        found.append({"aim": aim, "result": "met" if worst <= 0.05 else "missed", "figure": f"{1 - worst:.1%} below"})
    else:
        found.append({"aim": aim, "result": "not measured here", "figure": "needs an NVIDIA GPU"})
    aim = "GPU: within 2x of reading the needed logits once, or of a kernel launch"
    found.append({"aim": aim, "result": "not measured here", "figure": "bandwidth: benchmarks/sampling_tables.py"})
    return found


def plot(report: dict[str, Any], path: Path) -> None:
    """Time per step over γ, one panel a vocabulary."""
    cases = [case for case in report["cases"] if not case["filters"] and case["dtype"] == report["cases"][0]["dtype"]]
    sizes = sorted({case["vocabulary"] for case in cases})
    if (figure := plots.new_figure(4.2 * len(sizes) + 2, 3.8)) is None:
        return
    axes = figure.subplots(1, len(sizes), squeeze=False)
    for size, axis in zip(sizes, axes[0], strict=True):
        for name in cases[0]["rivals"]:
            points = [(c["gamma"], c["rivals"][name]["seconds"] * 1e3) for c in cases if c["vocabulary"] == size]
            axis.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
        axis.set(yscale="log", xlabel="drafted tokens γ", ylabel="ms per step", title=f"V = {size:,}")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(f"{report['machine']}, {report['cases'][0]['dtype']}")
    plots.save(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: two small cases")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop beginning new cases after this")
    parser.add_argument("--each", type=float, default=2.0, help="seconds per case on the CPU")
    parser.add_argument("--not-compiled", action="store_true", help="leave out what torch.compile must make first")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_grad_enabled(False)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "sampling",
        **machine.facts(device),
        "load": os.getloadavg(),
        "clock": "processor time" if own_clock(device) is time.thread_time else "wall time",
        "quick": arguments.quick,
        "cases": [],
        "left_out": [],
    }
    path = arguments.output or ROOT / "benchmarks" / "results" / f"sampling-{machine.slug(report['machine'])}.json"
    first, second = (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32, torch.bfloat16)
    plan = [(5, V, first, SAMPLED) for V in VOCABULARIES]
    plan += [(gamma, V, first, SAMPLED) for gamma in GAMMAS if gamma != 5 for V in VOCABULARIES]
    plan += [(5, V, second, SAMPLED) for V in VOCABULARIES] + [(5, V, first, FILTERED) for V in VOCABULARIES]
    if arguments.quick:
        plan = [(2, 1000, first, SAMPLED), (2, 1000, second, FILTERED)]
    known = functions(None if arguments.not_compiled else device)
    began = time.monotonic()
    print(
        "  ratio  rival                             time  peak memory  step (ratio: transformers' time / the rival's)"
    )
    for gamma, vocabulary, dtype, params in plan:
        if time.monotonic() - began > arguments.seconds:
            report["left_out"].append(f"γ={gamma} V={vocabulary} {dtype}: no time left of {arguments.seconds:.0f} s")
            continue
        each = 0.1 if arguments.quick else arguments.each
        report["cases"].append(measure(gamma, vocabulary, dtype, device, params, each, known))
        print("\n".join(lines(report["cases"][-1])), flush=True)
    report["load_after"] = os.getloadavg()
    report["aims"] = aims(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
    plot(report, path.with_suffix(".svg"))
    for aim in report["aims"]:
        print(f"{aim['result']:18} {aim['aim']}: {aim['figure']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
