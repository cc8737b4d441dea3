"""The tables of "Optimized speculative sampling" on our models: what sampling costs in a step and in a whole run.

    python -m benchmarks.sampling_tables
    python -m benchmarks.sampling_tables --gammas 2 5 --steps 2 --runs 2 --count 1 --new-tokens 6  # smoke
    python -m benchmarks.sampling_tables backend=cuda model.dtype=bfloat16

SmolLM2-135M, drafted by its own layers (``model.draft=cut``), answers prompts of Spec-Bench at temperature 1.

- **Steps.** For each γ both models' logits are recorded in a run, and every method of
  :mod:`benchmarks.support.sampling_rivals` then decides the same steps, turn by turn: time per step (the paper's Fig. 3
  and Table 6), most memory held (Fig. 4) and realised bandwidth (Table 3): the bytes that a step without loss must
  read (:meth:`Step.needed_bytes`, from the tokens which that method accepted) per time, beside what summing a large
  tensor reads. Times are processor time where torch has one CPU thread (``OMP_NUM_THREADS=1``, for a busy machine).
- **Whole runs.** Every method answers the prompts inside the pipeline, prompt by prompt in turn: wall-clock share of
  drafting, target pass and sampling (Table 5), acceptance and time per verdict (Table 8). All from cycle events.

Writes ``results/sampling_tables-<machine>.json`` and a plot beside it. Needs ``pip install 'spec-sdk[benchmarks]'``.

Legend: G = γ drafted tokens, N tree nodes, V vocabulary.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support import plots
from benchmarks.support.live_table import LiveTable
from benchmarks.support.published_sampling import Decide
from benchmarks.support.sampling_rivals import (
    COMPILED_SIGMOID,
    OURS,
    PUBLISHED_SIGMOID,
    RIVALS,
    TRANSFORMERS,
    Step,
    functions,
    stepper,
    whole_step,
)
from spec_sdk.bench.answers import Answer, Prompt, answer, events_of, spread_prompts, tokens_of
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import output_path
from spec_sdk.bench.memory import peak_bytes
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.scripts import build, run_script, script_parser
from spec_sdk.bench.timing import own_clock
from spec_sdk.bench.turns import rotated
from spec_sdk.contracts import Budget, Policy, Request, SamplingParams, Verdict, Verifier
from spec_sdk.metrics import summarise
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import DraftDistribution, TokenTree
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.chain_rejection import ChainRejection

SCHEMA_VERSION = 1
SAMPLED = SamplingParams(temperature=1.0)
IN_RUNS = (TRANSFORMERS, *OURS, PUBLISHED_SIGMOID)
"""``published exact`` decides as transformers' function does, so its whole runs would repeat that one's."""
STAGES = ("draft", "pass", "verdict", "recover")


class Depth(Policy):
    """Always the same γ, its config."""

    name = "depth"

    def budget(self, request: Request) -> Budget:
        return Budget(self.config)


def draft_logits(tree: TokenTree) -> torch.Tensor:
    """The logits [γ, V] that the tokens of a drawn chain came from."""
    sources = [draws[0].source for draws in tree.draws_N if draws]
    return torch.stack([source.logits_V for source in sources if isinstance(source, DraftDistribution)])


class Recording(Verifier):
    """Chain rejection that keeps the inputs of every step with γ drafted tokens."""

    name = "recording"
    guarantee = "distribution"

    def __init__(self, gamma: int) -> None:
        super().__init__(None)
        self.gamma = gamma
        self.steps: list[Step] = []

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        if tree.depth == self.gamma:
            tokens, sources = list(tree.token_N[1:]), [draws[0].source for draws in tree.draws_N if draws]
            known: list[Any] = [source.known for source in sources if isinstance(source, DraftDistribution)]
            draft_GV = draft_logits(tree)
            # whoever draws inside a pass may not have said how probable its tokens were
            q_GV = draft_GV.float().softmax(-1)
            q_G = [float(known[i].get(token, q_GV[i, token])) for i, token in enumerate(tokens)]
            self.steps.append(Step(draft_GV, logits_NV.clone(), tokens, q_G))
        return ChainRejection(None).verify_one(tree, logits_NV, request)


class ByFunction(Verifier):
    """A method that is a function of both models' logits, inside a pipeline."""

    name = "function"
    guarantee = "relaxed"

    def __init__(self, decide: Decide) -> None:
        super().__init__(None)
        self._decide = decide

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        if tree.depth == 0:
            return ChainRejection(None).verify_one(tree, logits_NV, request)
        ids = torch.tensor([tree.token_N[1:]], device=logits_NV.device)
        *accepted, token = self._decide(ids, draft_logits(tree), logits_NV)
        return Verdict(list(range(len(accepted) + 1)), token, tree)


def record(pipeline: Pipeline, gamma: int, prompts: Sequence[Prompt], count: int) -> list[Step]:
    """``count`` steps, as many from each prompt as from the others."""
    recording = Recording(gamma)
    pipeline = replace(
        pipeline,
        sampling=SAMPLED,
        make_sampler=lambda params: ExactSampler(None, params),
        verifier=recording,
        policy=Depth(gamma),
    )
    for i, prompt in enumerate(prompts):
        wanted = count * (i + 1) // len(prompts)
        with closing(_stream(pipeline, tokens_of(pipeline, prompt), i)) as stream:
            while len(recording.steps) < wanted and next(stream, None) is not None:
                pass
    return recording.steps[:count]


def _stream(pipeline: Pipeline, tokens: list[int], request_id: int) -> Any:
    return pipeline.stream(tokens, request_id=request_id, max_new_tokens=256, ignore_eos=True)


def replay(
    steps: Sequence[Step], names: Sequence[str], known: Mapping[str, Decide], seconds: float, least_rounds: int = 3
) -> dict[str, Any]:
    """Every method on the same steps, turn by turn, for ``seconds``."""
    device = steps[0].target_GV1.device
    clock = own_clock(device)
    steppers = {name: stepper(name, steps, SAMPLED, dict(known)) for name in names}
    for decide in steppers.values():
        decide(0, 0)
    taken: dict[str, list[float]] = {name: [] for name in names}
    accepted: dict[str, list[int]] = {name: [] for name in names}
    bandwidth: dict[str, list[float]] = {name: [] for name in names}
    rounds = differing = 0
    began = time.perf_counter()
    while rounds < least_rounds or time.perf_counter() - began < seconds:
        for i, step in enumerate(steps):
            answers = {}
            for name in rotated(names, i + rounds):
                torch.manual_seed(1000 * rounds + i)
                start = clock()
                answers[name] = steppers[name](i, 1000 * rounds + i)
                spent = clock() - start
                taken[name].append(spent)
                accepted[name].append(len(answers[name]) - 1)
                bandwidth[name].append(step.needed_bytes(accepted[name][-1]) / spent)
            differing += answers["exact"] != answers["reference"]
        rounds += 1
    return {
        "gamma": steps[0].gamma,
        "steps": len(steps),
        "rounds": rounds,
        "verdicts_in_which_exact_and_reference_differ": differing,
        "methods": {
            name: {
                "mean_s": statistics.fmean(taken[name]),
                "std_s": statistics.pstdev(taken[name]),
                "median_s": statistics.median(taken[name]),
                "quartiles_s": statistics.quantiles(taken[name], n=4)[::2],
                "acceptance_rate": statistics.fmean(accepted[name]) / steps[0].gamma,
                "bytes_per_s": statistics.median(bandwidth[name]),
                "peak_bytes": max(
                    peak_bytes(whole_step(name, step, SAMPLED, dict(known)), device) for step in steps[:3]
                ),
            }
            for name in names
        },
    }


def read_bandwidth(device: torch.device, size: int = 2**28) -> float:
    """Bytes per second at which summing a tensor far larger than any cache reads it."""
    values, clock = torch.ones(size // 4, device=device), own_clock(device)
    taken = []
    for _ in range(9):
        start = clock()
        values.sum()
        taken.append(clock() - start)
    return size / statistics.median(taken)


def in_pipeline(pipeline: Pipeline, name: str, gamma: int, known: Mapping[str, Decide]) -> Pipeline:
    """The pipeline with this method. Functions of logits draft with the reference sampler."""
    make = OURS.get(name, ReferenceSampler)
    verifier = ChainRejection(None) if name in OURS else ByFunction(known[name])
    return replace(
        pipeline,
        sampling=SAMPLED,
        make_sampler=lambda params: make(None, params),
        verifier=verifier,
        policy=Depth(gamma),
    )


def whole_runs(
    pipeline: Pipeline, gamma: int, prompts: Sequence[Prompt], new_tokens: int, known: Mapping[str, Decide]
) -> dict[str, Any]:
    """Every method answers every prompt, in turn."""
    names = [name for name in IN_RUNS if name in OURS or name in known]
    answers: dict[str, list[Answer]] = {name: [] for name in names}
    torch.manual_seed(0)
    for i, prompt in enumerate(prompts):
        for name in rotated(names, i):
            answers[name] += answer(in_pipeline(pipeline, name, gamma, known), [prompt], new_tokens)
    return {"gamma": gamma, "methods": {name: run_entry(answers[name]) for name in names}}


def run_entry(answers: Sequence[Answer]) -> dict[str, Any]:
    """Counts and stages of a method's runs, from their events. The first cycle of each warms up and is not timed."""
    summary = summarise(events_of(answers))
    cycles = [event for event in events_of(answers) if event["event"] == "cycle" and event["step"] > 1]
    seconds = {
        stage: sum(cycle[f"{stage}_s"] for cycle in cycles) for stage in ("draft", "verify", "verdict", "recover")
    }
    seconds["pass"] = seconds.pop("verify") - seconds["verdict"]
    whole = sum(seconds.values())
    return {
        "acceptance_rate": summary["acceptance_rate"],
        "mean_accepted_tokens": summary["mean_accepted_tokens"],
        "cycles": len(cycles),
        "share": {stage: seconds[stage] / whole for stage in STAGES} if whole else None,
        "median_s": {
            "cycle": _median(c["draft_s"] + c["verify_s"] + c["recover_s"] for c in cycles),
            "pass": _median(c["verify_s"] - c["verdict_s"] for c in cycles),
            **{stage: _median(c[f"{stage}_s"] for c in cycles) for stage in ("draft", "verdict", "recover")},
        },
        "new_tokens": summary["new_tokens"],
        "tokens": [one.tokens for one in answers],
    }


def _median(values: Iterator[float]) -> float | None:
    listed = list(values)
    return statistics.median(listed) if listed else None


STEP_COLUMNS = {
    "γ": 3,
    "method": -28,
    "median us": 9,
    "mean": 7,
    "std": 7,
    "ratio": 6,
    "MiB": 7,
    "GB/s": 6,
    "accepted": 8,
}


def show_steps(case: Mapping[str, Any], table: LiveTable) -> None:
    methods = case["methods"]
    base = methods[TRANSFORMERS if TRANSFORMERS in methods else "reference"]["median_s"]
    for name, one in methods.items():
        times = [f"{1e6 * one[key]:.0f}" for key in ("median_s", "mean_s", "std_s")]
        ratio, mebibytes = f"{base / one['median_s']:.2f}", f"{one['peak_bytes'] / 2**20:.2f}"
        rates = [f"{one['bytes_per_s'] / 1e9:.2f}", f"{one['acceptance_rate']:.2f}"]
        table.row(str(case["gamma"]), name, *times, ratio, mebibytes, *rates)


RUN_COLUMNS = {"γ": 3, "method": -28, "accepted": 8, "MAT": 5, "verdict us": 10, **dict.fromkeys(STAGES, 7)}


def show_runs(case: Mapping[str, Any], table: LiveTable) -> None:
    for name, one in case["methods"].items():
        shares = [f"{one['share'][stage]:.1%}" if one["share"] else "–" for stage in STAGES]
        verdict = (one["median_s"]["verdict"] or 0.0) * 1e6
        counts = [f"{one['acceptance_rate']:.2f}", f"{one['mean_accepted_tokens']:.2f}"]
        table.row(str(case["gamma"]), name, *counts, f"{verdict:.0f}", *shares)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Time and memory over γ."""
    if (figure := plots.new_figure(12.5, 4)) is None:
        return
    cases = report["steps"]
    times, memory = figure.subplots(1, 2)
    gammas = [case["gamma"] for case in cases]
    for name in cases[0]["methods"]:
        ones = [case["methods"][name] for case in cases]
        (line,) = times.plot(gammas, [one["median_s"] * 1e3 for one in ones], marker="o", markersize=3, label=name)
        low, high = zip(*(one["quartiles_s"] for one in ones), strict=True)
        times.fill_between(gammas, [t * 1e3 for t in low], [t * 1e3 for t in high], alpha=0.15, color=line.get_color())
        memory.plot(gammas, [one["peak_bytes"] / 2**20 for one in ones], marker="o", markersize=3, label=name)
    times.set(yscale="log", xlabel="drafted tokens γ", ylabel="ms per step (median, quartiles)", title="time")
    memory.set(yscale="log", xlabel="drafted tokens γ", ylabel="MiB", title="most memory held")
    figure.legend(*times.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(f"{report['machine']}; {report['target']}, {report['dtype']}, V = {report['vocabulary']:,}")
    plots.save(figure, path)


def main() -> int:
    parser = script_parser(__doc__, count=4, new_tokens=32)
    parser.add_argument("--longest", type=int, default=600, help="characters of a prompt")
    parser.add_argument("--gammas", type=int, nargs="*", default=range(1, 21), help="γ of the recorded steps")
    parser.add_argument("--steps", type=int, default=8, help="steps recorded for each γ")
    parser.add_argument("--seconds", type=float, default=3.0, help="of replaying, for each γ")
    parser.add_argument("--runs", type=int, nargs="*", default=(3, 5, 10, 15), help="γ of the whole runs")
    parser.add_argument("--not-compiled", action="store_true", help="leave out what torch.compile must make first")
    add_output(parser)
    arguments = parser.parse_intermixed_args()
    torch.set_grad_enabled(False)
    prompts = spread_prompts(arguments.prompts, arguments.count, arguments.longest)
    hot = ["sampling.temperature=1.0", "sampling.seed=0"]
    pipeline = build("pipeline=sd_chain", "verifier=chain_rejection", *hot, *arguments.overrides)
    device = pipeline.backend.device
    known = functions(None if arguments.not_compiled else device)
    names = [name for name in (*RIVALS, COMPILED_SIGMOID) if name in OURS or name in known]
    facts = {
        "schema_version": SCHEMA_VERSION,
        "target": pipeline.target_name,
        "draft": pipeline.draft_name,
        "dtype": pipeline.dtype,
        "overrides": arguments.overrides,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "read_bytes_per_s": read_bandwidth(device),
        "steps": [],
        "runs": [],
    }
    path = output_path(arguments.output, RESULTS, "sampling_tables", device)
    report = CaseReport(path, "sampling_tables", device, math.inf, **facts)
    content = report.content
    print(f"reading a large tensor: {content['read_bytes_per_s'] / 1e9:.1f} GB/s; ratio: transformers' median over it")
    table = LiveTable(STEP_COLUMNS)
    for gamma in arguments.gammas:
        steps = record(pipeline, gamma, prompts, arguments.steps)
        content["vocabulary"] = steps[0].target_GV1.shape[1]
        content["steps"].append(replay(steps, names, known, arguments.seconds))
        report.write()
        show_steps(content["steps"][-1], table)
    table = LiveTable(RUN_COLUMNS)
    for gamma in arguments.runs:
        content["runs"].append(whole_runs(pipeline, gamma, prompts, arguments.new_tokens, known))
        report.write()
        show_runs(content["runs"][-1], table)
    report.finish()
    if content["steps"]:
        plot(content, path.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
