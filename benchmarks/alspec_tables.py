"""ALSpec's Tables 1 and 2 and Figure 2 on any task: score and hit rate per task and λ, beside static selection.

    python -m benchmarks.alspec_tables                                              # needles and Spec-Bench
    python -m benchmarks.alspec_tables --benchmarks gsm8k_cot ifeval --limit 100    # LM Evaluation Harness

Rows are settings: plain decoding (the baseline), ALSpec at each λ, fixed layers in the place of verdicts, and attention
sink in every layer (λ = inf). Fixed layers are chosen twice, on other prompts: those whose predictions were accepted
more often than ``--likelihood`` at λ = ``--static`` (the paper's rule, §2), and as many of the most accepted as that λ
replaces there. A cell is *score / share of attentions replaced*: of all layers in all passes that predicted at all. For
verdicts that is the hit rate; a pass over no more than 2 x ``--size`` tokens predicts nothing.

Scores are

- of a benchmark its first metric, as the harness has it (``pip install 'spec-sdk[eval]'``, and the data of benchmarks);
- of needles the share found (docs/needle.md);
- of Spec-Bench's tasks, which have no right answers here, the share of tokens where the setting's first choice is plain
  decoding's, both being fed plain decoding's answer. That is no score of the paper's kind: it says how near a setting
  stays to the exact model, whose own is 1.

The paper's tables are of Llama 3.1 8B and 70B with S = 128 and of benchmarks whose data come from the hub. Writes
results/alspec_tables.json.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.alspec_quality import Reference, answered, calibration_errors, chosen, picks
from benchmarks.places import RESULTS
from benchmarks.support.fidelity import Fidelity
from benchmarks.support.live_table import LiveTable
from spec_sdk.bench.answers import Prompt, long_prompts, spread_prompts
from spec_sdk.bench.conversations import spread
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.errors import UserError
from spec_sdk.events import finite
from spec_sdk.files import write_json
from spec_sdk.metrics import ratio
from spec_sdk.needles import build_haystack
from spec_sdk.needles import measure as measure_needles
from spec_sdk.pipeline import Pipeline

THRESHOLDS = [0.05, 0.1, 0.15, 0.2, 0.25]
"""The paper's."""
BASELINE = "baseline"
NEEDLES = "needles"

Flags = Sequence[Sequence[bool | None]]
"""Per pass and layer whether the prediction was taken; None where there was none."""


@dataclass(frozen=True)
class Setting:
    """A row: its ``name``, and the options of the attention level; none for plain decoding."""

    name: str
    options: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """What a setting has of a task. ``replaced``: share of attentions; None where no pass predicted anything."""

    score: float
    replaced: float | None
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        share = "–" if self.replaced is None else f"{100 * self.replaced:.1f} %"
        return f"{self.score:.3f} / {share}"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"score": self.score, "replaced": self.replaced, **self.more}


@dataclass(frozen=True)
class TaskColumn:
    """A column: the task's ``name``, ``facts`` of it for the report, and its ``cell`` for a pipeline."""

    name: str
    facts: dict[str, Any]
    cell: Callable[[Pipeline, Setting], Cell]


def replaced(passes: Flags) -> float | None:
    """Predictions that were taken, over all layers of the passes that predicted in some layer."""
    predicting = [layers for layers in passes if any(hit is not None for hit in layers)]
    return ratio(sum(hit is True for layers in predicting for hit in layers), sum(map(len, predicting)))


def spec_bench_column(task: str, references: Sequence[Reference]) -> TaskColumn:
    """Nearness to the exact model on its own greedy answers to a task's prompts."""

    def cell(pipeline: Pipeline, setting: Setting) -> Cell:
        fidelity, passes = Fidelity(), []
        for each in references:
            logits_NV, attention = each.passage.score(pipeline.make_target_runner())
            fidelity.add(each.exact_NV, logits_NV, each.passage.after)
            passes += [report.hit for report in attention]
        found = fidelity.summary()
        more = {key: found[key] for key in ("positions", "kl_mean", "perplexity")}
        return Cell(found["top1_agreement"], replaced(passes), more)

    return TaskColumn(task, {"score": "top-1 agreement with the exact model", "prompts": len(references)}, cell)


def needle_column(first: Pipeline, texts: int, context: int) -> TaskColumn:
    """The needle test of ``texts`` texts of ``context`` tokens."""
    haystacks = [build_haystack(first.tokenizer, context, seed=seed) for seed in range(texts)]

    def cell(pipeline: Pipeline, setting: Setting) -> Cell:
        one, *others = [measure_needles(pipeline, haystack) for haystack in haystacks]
        score = sum(others, one)
        # a context of needles is longer than what a prediction reads: every pass predicts, in the layers that ever do
        rate = score.answering.rate
        layers = setting.facts.get("layers")
        share = rate if layers is None or rate is None else rate * len(layers) / pipeline.models.target.executor.layers
        more = {"found": score.found, "asked": score.asked, "nll_per_token": score.nll_per_token}
        return Cell(score.found / score.asked, share, more)

    return TaskColumn(NEEDLES, {"score": "share of needles found", "tokens": [h.tokens for h in haystacks]}, cell)


def harness_columns(arguments: argparse.Namespace) -> list[TaskColumn]:
    """A column for each benchmark of the LM Evaluation Harness. Raises UserError for what it does not know."""
    from spec_sdk.evaluation.harness import require
    from spec_sdk.evaluation.loading import load

    require()

    def column(task: str) -> TaskColumn:
        benchmarks = load([task], arguments.include_path, arguments.limit)

        def cell(pipeline: Pipeline, setting: Setting) -> Cell:
            return harness_cell(task, benchmarks, setting, arguments)

        return TaskColumn(task, {"score": "the benchmark's first metric", "limit": arguments.limit}, cell)

    return [column(task) for task in arguments.benchmarks]


def harness_cell(task: str, benchmarks: Any, setting: Setting, arguments: argparse.Namespace) -> Cell:
    """One benchmark, asked of one setting: a pipeline of its own, as ``task=eval`` asks it."""
    from spec_sdk.api.engine import Engine
    from spec_sdk.config.composing import settings_for
    from spec_sdk.evaluation.language_model import EngineModel
    from spec_sdk.evaluation.loading import build_requests
    from spec_sdk.evaluation.scores import evaluated
    from spec_sdk.events import EventLog

    options = [f"pipeline={'alspec' if setting.options else 'vanilla'}", *setting.options, *arguments.overrides]
    pipeline = build(*options)
    log = EventLog(pipeline.name)
    model = EngineModel(Engine(pipeline, settings_for(options), log), silent=True)
    build_requests(benchmarks, model)
    scores = evaluated(model, benchmarks)
    passes = [event["attention"]["hit"] for event in log.events if event["event"] == "cycle" and event["attention"]]
    predicted, hits = sum(s.predicted for s in model.scores), sum(s.hits for s in model.scores)
    share = replaced(passes) if passes else ratio(hits, predicted)
    more = {
        "metrics": scores.of[task],
        "standard_errors": scores.error_of[task],
        "questions": scores.questions.get(task),
    }
    return Cell(next(iter(scores.of[task].values())), share, more)


def settings_of(first: Pipeline, arguments: argparse.Namespace) -> list[Setting]:
    """All rows. Static layers are chosen on prompts with a text of their own, none of which is measured."""
    predictor = (f"predictor={arguments.predictor}", f"predictor.size={arguments.size}")
    dynamic = [
        Setting(f"λ = {value:g}", (*predictor, f"attention_verifier.threshold={value}"), {"threshold": value})
        for value in arguments.thresholds
    ]
    sink = Setting("λ = inf", (*predictor, "attention_verifier.threshold=inf"), {"threshold": "inf"})
    found = [Setting(BASELINE, ()), *dynamic]
    if arguments.calibration:
        found += static_settings(first, predictor, arguments)
    return [*found, sink]


def static_settings(first: Pipeline, predictor: tuple[str, ...], arguments: argparse.Namespace) -> list[Setting]:
    """The paper's rule, and as many layers as the verdicts replace on the same prompts."""
    prompts = calibration_prompts(first, arguments)
    references = [answered(first, prompt, arguments.new_tokens) for prompt in prompts]
    errors = calibration_errors(first, predictor, references)
    shares = [sum(error < arguments.static for error in layer) / len(layer) for layer in errors]
    count = max(1, math.floor(sum(shares)))
    rules = {
        f"static, p > {arguments.likelihood:g}": [i for i, share in enumerate(shares) if share > arguments.likelihood],
        f"static, {count} layer{'s' * (count > 1)}": picks(errors, arguments.static, count)["most accepted"],
    }
    return [
        Setting(
            name,
            (*predictor, "attention_verifier=static", f"attention_verifier.layers={layers}"),
            {"layers": layers, "chosen_at": arguments.static, "calibration_prompts": len(prompts)},
        )
        for name, layers in rules.items()
        if layers or print(f"{name}: no layer is accepted so often; the row is left out", flush=True)
    ]


def calibration_prompts(first: Pipeline, arguments: argparse.Namespace) -> list[Prompt]:
    """Prompts that bring a text along, and in which predictions are made. Raises UserError if there are too few."""
    every = long_prompts(first, arguments.prompts, 2 * arguments.size, first.context - arguments.new_tokens)
    measured = {prompt.text for prompt in spread_prompts(arguments.prompts, arguments.count)}
    others = [prompt for prompt in every if prompt.text not in measured]
    if len(others) < arguments.calibration:
        raise UserError(
            f"{arguments.prompts}: {len(others)} prompts are left to choose static layers on, and --calibration asks "
            f"for {arguments.calibration}"
        )
    return spread(others, arguments.calibration)


def columns_of(first: Pipeline, arguments: argparse.Namespace) -> list[TaskColumn]:
    """What is asked: benchmarks of the harness, or needles and the tasks of ``--prompts``."""
    if arguments.benchmarks:
        return harness_columns(arguments)
    columns = []
    if arguments.needle_texts:
        columns.append(needle_column(first, arguments.needle_texts, arguments.needle_context))
    by_task: dict[str, list[Reference]] = {}
    for prompt in spread_prompts(arguments.prompts, arguments.count):
        by_task.setdefault(prompt.task, []).append(answered(first, prompt, arguments.new_tokens))
    return columns + [spec_bench_column(task, references) for task, references in by_task.items()]


def main() -> int:
    arguments = parsed()
    began = time.monotonic()
    first = build("pipeline=alspec", *arguments.overrides)
    plain = first.vanilla()
    columns = columns_of(first, arguments)
    rows: list[dict[str, Any]] = []
    print(f"{first.target_name}, {first.dtype}: score / share of attentions replaced")
    settings = settings_of(first, arguments)
    widths = {"": -max(len(setting.name) for setting in settings)}
    table = LiveTable(widths | {column.name: 15 for column in columns})
    report = {
        "schema_version": 1,
        "benchmark": "alspec_tables",
        "guarantee": "relaxed",
        **pipeline_facts(first),
        "overrides": arguments.overrides,
        "predictor": arguments.predictor,
        "size": arguments.size,
        "new_tokens": arguments.new_tokens,
        "tasks": {column.name: column.facts for column in columns},
        "rows": rows,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for setting in settings:
        pipeline = chosen(first, *setting.options, *arguments.overrides) if setting.options else plain
        cells = {column.name: column.cell(pipeline, setting) for column in columns}
        table.row(setting.name, *map(str, cells.values()))
        rows.append({"setting": setting.name, **setting.facts, "tasks": {n: c.as_json() for n, c in cells.items()}})
        # rows so far outlive an interrupt
        write_json(arguments.output, finite(report))
    write_report(arguments.output, {**report, "seconds": round(time.monotonic() - began)})
    return 0


def parsed() -> argparse.Namespace:
    parser = script_parser(__doc__, count=12, new_tokens=64, output=RESULTS / "alspec_tables.json")
    parser.add_argument("--thresholds", type=float, nargs="+", default=THRESHOLDS, help="λs")
    parser.add_argument("--predictor", default="attention_sink", help="attention_sink, quest, h2o …")
    parser.add_argument("--size", type=int, default=32, help="predictor.size: half the keys read (the paper's S)")
    parser.add_argument("--static", type=float, default=0.1, help="λ at which static layers are chosen")
    parser.add_argument("--likelihood", type=float, default=0.8, help="of being accepted, that static layers exceed")
    parser.add_argument("--calibration", type=int, default=3, help="prompts they are chosen on; 0: no static rows")
    parser.add_argument("--needle-texts", type=int, default=1, help="texts with ten needles each; 0: no needle test")
    parser.add_argument("--needle-context", type=int, default=1024, help="tokens of such a prompt")
    parser.add_argument("--benchmarks", nargs="*", default=[], help="of the LM Evaluation Harness, instead")
    parser.add_argument("--include-path", help="a directory with benchmarks of your own, in the harness's YAML")
    parser.add_argument("--limit", type=int, help="questions of each benchmark")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    sys.exit(run_script(main))
