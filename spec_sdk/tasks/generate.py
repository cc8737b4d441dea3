"""``task=generate``, the main job: answer prompts, stream the text, keep the metrics."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spec_sdk.attention_html import ShadedAnswer, attention_page, shaded_pieces
from spec_sdk.config.chosen_backend import backend_choice
from spec_sdk.contracts import Task
from spec_sdk.errors import UserError
from spec_sdk.events import EventLog
from spec_sdk.held_signals import sigterm_held_back
from spec_sdk.metrics import SCHEMA_VERSION, comparison, request_metrics, summarise
from spec_sdk.prompts import Prompt, check_length, read_prompts
from spec_sdk.ranks import launched_rank
from spec_sdk.registry import Registry
from spec_sdk.report import Column, Progress, closing_table, doubts
from spec_sdk.run_output import RunOutput, check_writable
from spec_sdk.settings import Settings
from spec_sdk.tables import print_facts
from spec_sdk.version import __version__
from spec_sdk.what_ran import facts_of, in_words, plugins_of

if TYPE_CHECKING:
    from spec_sdk.model_inputs import ModelInput
    from spec_sdk.pipeline import Pipeline

TO_THE_BIT = ", to the bit"
CUT_OFF = ("interrupted", "error")
"""Reasons of answers that are not whole."""
NO_GUESS = "attention: no guess was made; contexts were short (predictor.size), or no layer speculates"


class Generate(Task):
    """Answers one or more prompts with the chosen pipeline."""

    name = "generate"
    every_rank = True

    def run(self, app: Settings) -> int:
        """Stream text to stdout, write the run's directory, print the table to stderr; return 0.

        Raises UserError for bad input, before anything is generated. An interrupt, or any other exception in the
        middle, keeps the text so far and the metrics, and is raised again.
        """
        from spec_sdk.model_inputs import model_inputs
        from spec_sdk.pipeline import build_pipeline, joined_backend

        if app.json:
            raise UserError("json: metrics.json in the output directory has the answers; leave it out")
        registry = Registry.discover()
        # joined before anything can fail that the leader does alone: the others would wait for it to join
        backend = joined_backend(app, registry)
        asked = prompts_to_answer(app)
        backend.expect(len(asked) * (2 if app.compare else 1) * app.max_new_tokens)
        pipeline = build_pipeline(app, registry, backend)
        prompts = model_inputs(pipeline, asked, app)
        plugins = plugins_of(app, registry)
        for i, prompt in enumerate(prompts):
            check_length(len(prompt.tokens), app.max_new_tokens, pipeline.context, i, len(prompts))
        if not pipeline.ranks.is_leader:
            follow(pipeline, *[pipeline.vanilla()] * app.compare)
            return 0
        with RunOutput(app.output_dir) as output:
            pipelines = [pipeline, *[pipeline.vanilla()] * app.compare]
            runs = [
                Run(each, app, CountingLog(each.name, output.events, registry.hook.spec_sdk_event), len(prompts))
                for each in pipelines
            ]
            try:
                answer_in_turns(runs, prompts)
            finally:
                with sigterm_held_back():
                    if runs[0].log.events:
                        keep(output, runs, [each.prompt for each in prompts], app, plugins)
        pipeline.ranks.finish()
        return 0


def keep(
    output: RunOutput, runs: Sequence[Run], asked: Sequence[Prompt], app: Settings, plugins: Mapping[str, Any]
) -> None:
    """Write the run's directory, and print the table of its runs to stderr."""
    output.save(metrics_of(runs, app, asked, plugins), app.kept, attention_of(runs[0], asked, app))
    print_facts(facts_of(app, plugins))
    finished = finished_by_all(runs)
    comparable = finished is None or bool(finished)
    columns = [run.column(finished or None) for run in (runs if comparable else runs[:1])]
    closing_table(*columns)
    if not comparable:
        print("not compared: no prompt was answered by both", file=sys.stderr)
    elif finished:
        print(f"compared by the prompts that both finished: {len(finished)}", file=sys.stderr)
    for doubt in doubts(*columns):
        print(doubt, file=sys.stderr)
    attention = runs[0].summary()["attention"]
    if attention is not None and attention["hit_rate"] is None:
        print(NO_GUESS, file=sys.stderr)
    print(f"results in {output.directory}", file=sys.stderr)


def prompts_to_answer(app: Settings) -> list[Prompt]:
    """The prompts, where the run may write checked; with several processes the leader's alone, which also writes."""
    if launched_rank() != 0:
        return []
    prompts = read_prompts(app)
    check_writable(app.output_dir)
    return prompts


def follow(*pipelines: Pipeline) -> None:
    """Take part in what the leader does with these pipelines, until it is done. It alone prints and keeps anything."""
    for pipeline in pipelines:
        pipeline.prepare()
    pipelines[0].follow()


def answer_in_turns(runs: Sequence[Run], prompts: Sequence[ModelInput]) -> None:
    """Each prompt is answered by all before the next one: a machine that slows down slows all of them. The first one's
    text goes to stdout, prompts apart by a blank line.
    """
    for i, prompt in enumerate(prompts):
        if i:
            sys.stdout.write("\n")
        for run in runs:
            run.answer(i, prompt, shown=run is runs[0])
    for run in runs:
        run.close()


class Run:
    """One pipeline over ``count`` prompts, and the events of it."""

    def __init__(self, pipeline: Pipeline, app: Settings, log: CountingLog, count: int) -> None:
        from spec_sdk.api.engine import Engine

        self.pipeline = pipeline
        self.log = log
        self._engine = Engine(pipeline, app, log)
        self._progress = Progress(pipeline.name, count, app.max_new_tokens)
        self._calls: dict[int, list[Any]] = {}

    def answer(self, i: int, prompt: ModelInput, shown: bool) -> None:
        """Answer prompt number ``i``; ``shown`` streams the text to stdout."""
        from spec_sdk.parallel.spread_session import gather_calls

        self._stream(i, prompt, shown)
        for rank, calls in gather_calls(self.pipeline.ranks).items():
            self._calls.setdefault(rank, []).extend(calls)

    def close(self) -> None:
        """Behind the last prompt: log what the other ranks did."""
        for rank, calls in self._calls.items():
            self.log.emit({"event": "follower", "rank": rank, "calls": calls})

    def _stream(self, i: int, prompt: ModelInput, shown: bool) -> None:
        counts, progress = Counts(), self._progress
        self.log.counts = counts
        try:
            # closing it ends the request's events even if the interrupt came between two cycles
            with contextlib.closing(self._engine.stream(prompt.tokens, **prompt.options)) as stream:
                for part in stream:
                    if shown:
                        sys.stdout.write(part.text)
                        sys.stdout.flush()
                    progress.update(i, counts.tokens, counts.steps, counts.seconds)
        finally:
            if shown:
                sys.stdout.write("\n")
                sys.stdout.flush()
            progress.finish(i, counts.tokens, counts.steps, counts.seconds, counts.reason)

    def records(self, prompts: Sequence[Prompt], save_prompts: bool) -> list[dict[str, Any]]:
        """One record per prompt that was begun, in order."""
        begun = [event["request"] for event in self.log.events if event["event"] == "request_start"]
        return [self._record(request, prompts[request], save_prompts) for request in begun]

    def _record(self, request: int, prompt: Prompt, save_prompt: bool) -> dict[str, Any]:
        record = request_metrics(self.log.of_request(request))
        text = self.pipeline.tokenizer.decode(record["token_ids"])
        return {"id": prompt.id, "prompt": prompt.content if save_prompt else None, **record, "text": text}

    def finished(self) -> set[int]:
        """The numbers of the prompts whose answers are whole."""
        ends = [event for event in self.log.events if event["event"] == "request_end"]
        return {event["request"] for event in ends if event["finish_reason"] not in CUT_OFF}

    def summary(self, prompts: Collection[int] | None = None) -> dict[str, Any]:
        """The counts over these prompts; None: over all."""
        events = self.log.events
        return summarise(events if prompts is None else [e for e in events if e.get("request") in prompts])

    def column(self, prompts: Collection[int] | None) -> Column:
        """This run in the closing table, by these prompts; None: by all."""
        promised = self.pipeline.guarantee
        return Column(self.pipeline.name, self.summary(prompts), promised + TO_THE_BIT * self.pipeline.deterministic)


def finished_by_all(runs: Sequence[Run]) -> set[int] | None:
    """The prompts by which runs that were cut off are compared; None where none of several was."""
    if len(runs) < 2:
        return None
    finished = set.intersection(*(run.finished() for run in runs))
    begun = {event["request"] for run in runs for event in run.log.events if event["event"] == "request_start"}
    return None if finished == begun else finished


class Counts:
    """What the progress line shows of the request under way."""

    def __init__(self) -> None:
        self.tokens = self.steps = 0
        self.seconds = 0.0
        self.reason = "interrupted"

    def add(self, event: Mapping[str, Any]) -> None:
        """Count one event."""
        if event["event"] == "cycle":
            self.tokens += len(event["tokens"])
            self.steps += 1
            self.seconds += event["draft_s"] + event["verify_s"] + event["recover_s"]
        elif event["event"] == "request_end":
            self.reason = event["finish_reason"]


class CountingLog(EventLog):
    """The events of a run, counted as they come for the request under way."""

    counts = Counts()

    def emit(self, event: Mapping[str, Any]) -> None:
        super().emit(event)
        self.counts.add(event)


def metrics_of(
    runs: Sequence[Run], app: Settings, prompts: Sequence[Prompt], plugins: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """All of metrics.json: the first run, and the second as what it is compared with."""
    from spec_sdk.bench.machine import run_facts

    pipeline = runs[0].pipeline
    metrics: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "pipeline": pipeline.name,
        "overridden": app.pipeline.overridden,
        "plugins": plugins,
        "guarantee": pipeline.guarantee,
        "deterministic": pipeline.deterministic,
        "models": {"target": pipeline.target_name, "draft": pipeline.draft_name},
        "backend": pipeline.backend.name,
        "backend_choice": backend_choice(app),
        "dtype": pipeline.dtype,
        "rounds_rows": pipeline.rounds_rows,
        "memory": dict(pipeline.memory),
        "machine": {
            **run_facts(pipeline.backend),
            "compiled": dict(pipeline.backend.compiled),
            "processes": pipeline.ranks.size,
            "device_groups": pipeline.device_groups,
            "cpus": os.cpu_count(),
            "spec_sdk": __version__,
        },
        "sampling": asdict(pipeline.sampling),
        "max_new_tokens": app.max_new_tokens,
        "prompts": runs[0].records(prompts, app.save_prompts),
        "summary": runs[0].summary(),
    }
    if len(runs) > 1:
        finished = finished_by_all(runs)
        compared = comparison(runs[0].summary(finished), runs[1].summary(finished))
        whole = {"vanilla": runs[1].summary(), "prompts": runs[1].records(prompts, save_prompts=False)}
        metrics["comparison"] = compared | whole | {"guarantee": runs[1].pipeline.guarantee}
    return metrics


def attention_of(run: Run, prompts: Sequence[Prompt], app: Settings) -> str | None:
    """The page of the answers shaded by hit rate; None of a run that does not speculate on attention."""
    records = run.records(prompts, app.save_prompts)
    if all(record["attention"] is None for record in records):
        return None
    answers = [
        ShadedAnswer(
            prompts[request].text if app.save_prompts else f"prompt {prompts[request].id}",
            shaded_pieces(run.log.of_request(request), run.pipeline.tokenizer),
            (record["attention"] or {}).get("hit_rate"),
        )
        for request, record in enumerate(records)
    ]
    facts = {
        "target": f"{run.pipeline.target_name}, {run.pipeline.dtype}",
        "guarantee": run.pipeline.guarantee,
        "predictor": in_words(given(app.predictor)),
        "attention verifier": in_words(given(app.attention_verifier)),
    }
    if "threshold" in app.attention_verifier:
        facts["λ"] = str(app.attention_verifier["threshold"])
    return attention_page(f"{run.pipeline.name}: tokens by attention hit rate", facts, answers)


def given(node: Mapping[str, Any]) -> dict[str, Any]:
    """A plugin and those of its options that have a value."""
    return {key: value for key, value in node.items() if value is not None}
