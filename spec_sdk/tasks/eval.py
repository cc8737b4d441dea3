"""``task=eval``: benchmarks of the LM Evaluation Harness, answered and scored by the pipeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.events import EventLog
from spec_sdk.files import write_atomically, write_json
from spec_sdk.metrics import SCHEMA_VERSION, summarise
from spec_sdk.registry import Registry
from spec_sdk.run_output import METRICS, check_writable, write_config
from spec_sdk.say import say
from spec_sdk.settings import Settings
from spec_sdk.tables import print_facts
from spec_sdk.what_ran import facts_of, plugins_of

if TYPE_CHECKING:
    from spec_sdk.evaluation.loading import Benchmarks
    from spec_sdk.evaluation.scored_run import Run
    from spec_sdk.pipeline import Pipeline

SAMPLES = "samples.jsonl"
"""What was asked and answered, a line for each question and filter."""
UNHEARD = {
    "max_new_tokens": "the benchmark says how long answers may be",
    "prompt_limit": "task.limit says how many questions are asked",
    "error_bounds": "task=eval does not estimate them",
    "json": "metrics.json in the output directory has the results",
}
"""Options of other tasks that change nothing here, and why."""


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

        ``compare=true`` scores plain decoding too. What a pipeline scored is written as soon as it is done. Raises
        UserError for bad input, before anything is asked.
        """
        benchmarks = self._benchmarks(app)
        check_writable(app.output_dir)

        from spec_sdk.evaluation.scored_run import show
        from spec_sdk.pipeline import build_pipeline

        pipeline = build_pipeline(app, Registry.discover(), slots=self.config.max_num_seqs)
        baseline = pipeline.vanilla()
        pipelines = [pipeline, baseline] if app.compare and pipeline.name != baseline.name else [pipeline]
        runs: list[Run] = []
        for each in pipelines:
            try:
                runs.append(self._scored(each, app, benchmarks))
            except BaseException as error:
                self._tell_what_is_kept(error, each, app, runs)
                raise
            self._save(app, runs)
        print_facts(facts_of(app, plugins_of(app, Registry.discover())))
        show(runs)
        for run in runs:
            if run.changed is not None:
                print(run.changed, file=sys.stderr)
        print(f"results in {app.output_dir}", file=sys.stderr)
        return 0

    def _benchmarks(self, app: Settings) -> Benchmarks:
        from spec_sdk.evaluation.harness import require
        from spec_sdk.evaluation.loading import load

        config = self.config
        named = [config.tasks] if isinstance(config.tasks, str) else config.tasks
        if not isinstance(named, list) or not named or not all(isinstance(name, str) and name for name in named):
            raise UserError("task.tasks: name a benchmark, or a list of them, such as task.tasks=[gsm8k_cot,ifeval]")
        self._check(app)
        require()
        return load(named, config.include_path, config.limit, config.num_fewshot, app.chat is True)

    def _check(self, app: Settings) -> None:
        """Raise UserError for options that would go unheard."""
        from spec_sdk.config.overrides import parse

        for given in ("prompt", "prompt_file", "audio"):
            if getattr(app, given) is not None:
                raise UserError(f"{given}: task=eval asks the questions of benchmarks; leave it out")
        for override in parse(app.overrides):
            name = str(override.key_or_group)
            if name in UNHEARD:
                raise UserError(f"{name}: {UNHEARD[name]}; leave it out")
            group, _, parameter = name.partition(".")
            if group == "sampling" and parameter != "seed" and self.config.sampling == "task":
                raise UserError(
                    f"{name}: the benchmark says what tokens are chosen by; add task.sampling=pipeline, or leave it out"
                )

    def _scored(self, pipeline: Pipeline, app: Settings, benchmarks: Benchmarks) -> Run:
        from spec_sdk.api.engine import Engine
        from spec_sdk.evaluation.language_model import EngineModel
        from spec_sdk.evaluation.loading import build_requests
        from spec_sdk.evaluation.scored_run import Run
        from spec_sdk.evaluation.scores import evaluated

        say(f"{pipeline.name}: {', '.join(benchmarks.names)}")
        log = EventLog(pipeline.name, observe=Registry.discover().hook.spec_sdk_event)
        sampling = app.sampling if self.config.sampling == "pipeline" else None
        own = self.config.loglikelihood == "target"
        model = EngineModel(Engine(pipeline, app, log), app.sampling.seed, sampling, own)
        build_requests(benchmarks, model)
        return Run(pipeline, model, evaluated(model, benchmarks), summarise(log.events))

    def _tell_what_is_kept(self, error: BaseException, at: Pipeline, app: Settings, runs: Sequence[Run]) -> None:
        """Where a pipeline is not scored to the end: the results of the one before are whole."""
        if runs:
            print(
                f"{at.name} was not scored; the results of {runs[0].pipeline.name} are in {app.output_dir}",
                file=sys.stderr,
            )
        elif isinstance(error, KeyboardInterrupt):
            print(f"no answers of {at.name} are kept: the same command starts again", file=sys.stderr)

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
            "rounds_rows": first.pipeline.rounds_rows,
            "machine": {"device": first.pipeline.backend.describe()},
            "task": asdict(self.config),
            "summary": first.as_data(),
        }
        if len(runs) > 1:
            metrics["comparison"] = {"vanilla": runs[1].as_data()}
        write_json(app.output_dir / METRICS, metrics)
        write_atomically(app.output_dir / SAMPLES, "".join(first.samples(app.save_prompts)))
        write_config(app.output_dir, app.kept)
