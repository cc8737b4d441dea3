"""Speculative sampling: time and memory of one verification step on a chain of γ drafted tokens.

    python -m benchmarks.sampling            # on the GPU if there is one, else on the CPU
    python -m benchmarks.sampling --quick    # a smoke run

Rivals get the same logits and tokens in one process, turn by turn; figures are medians over steps of several sets of
inputs. A step begins with drawn tokens and what drawing left behind, alike for all
(:mod:`benchmarks.support.sampling_rivals`):

- ``transformers``: ``transformers.generation.utils._speculative_sampling``, as its assisted generation calls it;
- ``reference``: our definition;
- ``exact``: the fused sampler, which gives the reference's tokens for the same random numbers, by the kernels of the
  device's backend, and by torch alone;
- ``sigmoid``: the approximation of "Optimized speculative sampling", α = -1e4, β = 1e4, as our plugin does it: σ of
  drafted tokens, and of whole rows only after a rejection;
- ``published exact``, ``published sigmoid``: the paper's two algorithms, which work on all γ rows every step
  (:mod:`benchmarks.support.published_sampling`), the second also through ``torch.compile``, into one kernel.

Prints a table (ratio first: transformers' time over the rival's), writes ``results/sampling-<machine>.json`` and a plot
beside it, and says last which aims are met. Needs ``pip install 'spec-sdk[benchmarks,cuda]'``.

Legend: G = γ drafted tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support import plots
from benchmarks.support.cuda_timing import median_wall
from benchmarks.support.live_table import LiveTable
from benchmarks.support.published_sampling import Decide
from benchmarks.support.rivals import COLUMNS, Case, faster_aim, rival_rows, time_ratio
from benchmarks.support.sampling_rivals import (
    COMPILED_SIGMOID,
    OURS,
    PUBLISHED_SIGMOID,
    RIVALS,
    Step,
    functions,
    stepper,
    whole_step,
)
from spec_sdk.bench.aims import Aim, aim
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import device_parser, output_path
from spec_sdk.bench.memory import peak_bytes
from spec_sdk.bench.timing import median_seconds, own_clock
from spec_sdk.contracts import SamplingParams
from spec_sdk_samplers.reference import ReferenceSampler

SCHEMA_VERSION = 2
GAMMAS = (1, 2, 3, 5, 8, 10, 15, 20)
VOCABULARIES = (32_000, 49_152, 128_256, 262_144)
SAMPLED = SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)
INPUT_SETS = 8


def make_step(
    gamma: int, vocabulary: int, dtype: torch.dtype, device: torch.device, params: SamplingParams, seed: int
) -> Step:
    """Random logits of target and draft, and tokens drawn from the draft's distribution."""
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
    return {name: next_step(name, steps, params, known) for name in names}


def next_step(name: str, steps: list[Step], params: SamplingParams, known: dict[str, Decide]) -> Callable[[], object]:
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
        times = median_seconds(calls, seconds, clock=own_clock(device))
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


def rows(case: Case) -> list[list[str]]:
    base = "transformers" if "transformers" in case["rivals"] else "reference"
    label = f"{shape(case)} {case['dtype']} {case['filters'] or ''}"
    return rival_rows(case, base, label.strip())


def shape(case: Case) -> str:
    return f"γ={case['gamma']} V={case['vocabulary']}"


def aims(report: dict[str, Any]) -> list[Aim]:
    plain = [case for case in report["cases"] if not case["filters"]]
    others = ["reference", "transformers", PUBLISHED_SIGMOID, COMPILED_SIGMOID, "sigmoid"]
    known = [name for name in others if plain and all(name in case["rivals"] for case in plain)]
    found = [faster_aim("exact", name, plain, shape, report["device"]) for name in known]
    asked = [case for case in plain if (case["gamma"], case["vocabulary"]) == (5, 128_256)]
    name = "GPU: exact at least 95 % below transformers per step at V = 128,256, γ = 5"
    if report["device"] == "cuda" and asked and "transformers" in known:
        worst = max(time_ratio(case, "exact", "transformers") for case in asked)
        found.append(aim(name, worst <= 0.05, f"{1 - worst:.1%} below"))
    else:
        found.append(aim(name, None, "needs an NVIDIA GPU and transformers"))
    name = "GPU: within 2x of reading the needed logits once, or of a kernel launch"
    found.append(aim(name, None, "bandwidth: python -m benchmarks.sampling_tables"))
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
    parser = device_parser(__doc__, seconds=600.0, each=2.0)
    parser.add_argument("--not-compiled", action="store_true", help="leave out what torch.compile must make first")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_grad_enabled(False)
    path = output_path(arguments.output, RESULTS, "sampling", device, "quick" if arguments.quick else "")
    facts = {"schema_version": SCHEMA_VERSION, "quick": arguments.quick}
    report = CaseReport(path, "sampling", device, arguments.seconds, **facts)
    first, second = (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32, torch.bfloat16)
    plan = [(5, V, first, SAMPLED) for V in VOCABULARIES]
    plan += [(gamma, V, first, SAMPLED) for gamma in GAMMAS if gamma != 5 for V in VOCABULARIES]
    plan += [(5, V, second, SAMPLED) for V in VOCABULARIES] + [(5, V, first, FILTERED) for V in VOCABULARIES]
    if arguments.quick:
        plan = [(2, 1000, first, SAMPLED), (2, 1000, second, FILTERED)]
    known = functions(None if arguments.not_compiled else device)
    print("ratio: transformers' time over the rival's, the reference's where transformers is left out")
    table = LiveTable(COLUMNS)
    for gamma, V, dtype, params in report.in_time(plan, lambda case: f"γ={case[0]} V={case[1]} {case[2]}"):
        each = 0.1 if arguments.quick else arguments.each
        report.add(measure(gamma, V, dtype, device, params, each, known))
        for row in rows(report.cases[-1]):
            table.row(*row)
    report.finish(aims(report.content))
    plot(report.content, path.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
