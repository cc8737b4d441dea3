"""``task=eval``: benchmarks of the LM Evaluation Harness, answered and scored by the pipeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import yaml

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.events import EventLog
from spec_sdk.files import write_atomically, write_json
from spec_sdk.metrics import SCHEMA_VERSION, summarise
from spec_sdk.registry import Registry
from spec_sdk.report import Column as RunColumn
from spec_sdk.report import closing_table
from spec_sdk.run_output import CONFIG, METRICS, check_writable
from spec_sdk.settings import Settings
from spec_sdk.tables import number, percent, print_facts, print_table
from spec_sdk.what_ran import facts_of, plugins_of

if TYPE_CHECKING:
    from spec_sdk.evaluation.harness import Benchmarks, Scores
    from spec_sdk.evaluation.language_model import EngineModel
    from spec_sdk.pipeline import Pipeline

SAMPLES = "samples.jsonl"
"""What was asked and answered, a line for each question."""


@dataclass
class EvalConfig:
    """Options of ``task=eval``."""

    tasks: Any = option(None, "the harness's names of benchmarks: one, or a list such as [gsm8k_cot,ifeval]")
    include_path: str | None = option(None, "a directory with benchmarks of your own, as the harness's YAML has them")
    limit: int | None = option(None, "questions of each benchmark", minimum=1, means={None: "all of them"})
    num_fewshot: int | None = option(
        None, "examples before each question", minimum=0, means={None: "as many as the benchmark says"}
    )
    sampling: str = option(
        "task",
        "what tokens are chosen by",
        choices={"task": "what the benchmark says, most often greedily", "pipeline": "sampling.*, as in other runs"},
    )
    loglikelihood: str = option(
        "pipeline",
        "whose likelihoods benchmarks without answers go by",
        choices={
            "pipeline": "where it speculates on attention: token by token, as it decodes; else the target's",
            "target": "the target's own, with exact attention",
        },
    )
    max_num_seqs: int = option(8, "questions that are answered at once", minimum=1)


class Evaluate(Task):
    """Asks a pipeline the questions of benchmarks (LM Evaluation Harness) and scores its answers."""

    name = "eval"
    Config = EvalConfig
    config: EvalConfig

    def run(self, app: Settings) -> int:
        """A table of scores goes to stderr, metrics, answers and config to the output directory; returns 0.

        ``compare=true`` scores plain decoding too. Raises UserError for bad input, before anything is asked.
        """
        benchmarks = self._benchmarks(app)
        check_writable(app.output_dir)

        from spec_sdk.evaluation.harness import evaluated
        from spec_sdk.pipeline import build_pipeline

        pipeline = build_pipeline(app, Registry.discover(), slots=self.config.max_num_seqs)
        baseline = pipeline.vanilla()
        pipelines = [pipeline, baseline] if app.compare and pipeline.name != baseline.name else [pipeline]
        runs = []
        for each in pipelines:
            print(f"{each.name}: {', '.join(benchmarks.tasks)}", file=sys.stderr, flush=True)
            log = EventLog(each.name, observe=Registry.discover().hook.spec_sdk_event)
            model = self._model(each, app, log)
            runs.append(Run(each, model, evaluated(model, benchmarks), summarise(log.events)))
        self._save(app, runs)
        print_facts(facts_of(app, plugins_of(app, Registry.discover())))
        show(runs)
        print(f"results in {app.output_dir}", file=sys.stderr)
        return 0

    def _benchmarks(self, app: Settings) -> Benchmarks:
        from spec_sdk.evaluation.harness import Benchmarks, known_tasks, require

        config = self.config
        named = [config.tasks] if isinstance(config.tasks, str) else config.tasks
        if not isinstance(named, list) or not named or not all(isinstance(name, str) and name for name in named):
            raise UserError("task.tasks: name a benchmark, or a list of them, such as task.tasks=[gsm8k_cot,ifeval]")
        for given in ("prompt", "prompt_file", "audio"):
            if getattr(app, given) is not None:
                raise UserError(f"{given}: task=eval asks the questions of benchmarks; leave it out")
        require()
        manager = known_tasks(named, config.include_path)
        return Benchmarks(tuple(named), config.limit, config.num_fewshot, app.chat is True, manager)

    def _model(self, pipeline: Pipeline, app: Settings, log: EventLog) -> EngineModel:
        from spec_sdk.api.engine import Engine
        from spec_sdk.evaluation.language_model import EngineModel

        sampling = app.sampling if self.config.sampling == "pipeline" else None
        own = self.config.loglikelihood == "target"
        return EngineModel(Engine(pipeline, app, log), app.sampling.seed, sampling, own)

    def _save(self, app: Settings, runs: Sequence[Run]) -> None:
        app.output_dir.mkdir(parents=True, exist_ok=True)
        first = runs[0]
        metrics: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "pipeline": first.pipeline.name,
            "overridden": app.pipeline.overridden,
            "plugins": plugins_of(app, Registry.discover()),
            "guarantee": first.guarantee,
            "deterministic": first.pipeline.deterministic,
            "models": {"target": first.pipeline.target_name, "draft": first.pipeline.draft_name},
            "backend": first.pipeline.backend.name,
            "dtype": first.pipeline.dtype,
            "machine": {"device": first.pipeline.backend.describe()},
            "task": asdict(self.config),
            "summary": first.as_data(),
        }
        if len(runs) > 1:
            metrics["comparison"] = {"vanilla": runs[1].as_data()}
        write_json(app.output_dir / METRICS, metrics)
        samples = first.scores.samples if app.save_prompts else [dict(s, asked=None) for s in first.scores.samples]
        lines = "".join(json.dumps(sample, ensure_ascii=False, default=str) + "\n" for sample in samples)
        write_atomically(app.output_dir / SAMPLES, lines)
        write_atomically(app.output_dir / CONFIG, yaml.safe_dump(dict(app.kept), sort_keys=False, allow_unicode=True))


@dataclass(frozen=True)
class Run:
    """What one pipeline scored, and what its answers cost."""

    pipeline: Pipeline
    model: EngineModel
    scores: Scores
    summary: Mapping[str, Any]

    @property
    def guarantee(self) -> str:
        return self.pipeline.guarantee

    @property
    def scored_by(self) -> str | None:
        """Whose likelihoods the scores go by; None where only answers were scored."""
        if not self.model.scores:
            return None
        return "pipeline, token by token" if self.model.scorer.relaxed else "target"

    @property
    def hit_rate_scoring(self) -> float | None:
        """Of predictions of attention while likelihoods were computed."""
        predicted = sum(score.predicted for score in self.model.scores)
        return sum(score.hits for score in self.model.scores) / predicted if predicted else None

    def as_data(self) -> dict[str, Any]:
        """The summary of a run, with the scores."""
        return {
            **self.summary,
            "scores": self.scores.of,
            "standard_errors": self.scores.error_of,
            "questions": self.scores.questions,
            "loglikelihood": {
                "texts": len(self.model.scores),
                "scored_by": self.scored_by,
                "hit_rate": self.hit_rate_scoring,
            },
        }


def show(runs: Sequence[Run]) -> None:
    """Scores, a column for each pipeline, and what the answers cost."""
    rows = []
    for task, metrics in runs[0].scores.of.items():
        for metric in metrics:
            cells = [_with_error(run.scores, task, metric) for run in runs]
            rows.append([f"{task}: {metric}", *cells, str(runs[0].scores.questions.get(task, "–"))])
    scored = [run.scored_by for run in runs]
    if any(scored):
        rows.append(["likelihoods by", *(by or "–" for by in scored), ""])
    rates = [run.hit_rate_scoring for run in runs]
    if any(rate is not None for rate in rates):
        rows.append(["attention hit rate, likelihoods", *map(percent, rates), ""])
    print_table("", ["benchmark", *(run.pipeline.name for run in runs), "questions"], rows)
    if runs[0].summary["new_tokens"]:
        columns = [RunColumn(run.pipeline.name, dict(run.summary), run.pipeline.guarantee) for run in runs]
        closing_table(*columns)


def _with_error(scores: Scores, task: str, metric: str) -> str:
    value = number(scores.of.get(task, {}).get(metric), 4)
    error = scores.error_of.get(task, {}).get(metric)
    return value if error is None else f"{value} ± {error:.4f}"
