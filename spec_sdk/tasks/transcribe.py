"""``task=transcribe``: what is said in recordings, by a Whisper model: texts, word error rates, and what they cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.bench.pipeline_names import PIPELINES, pipeline_names
from spec_sdk.config.overrides import parse
from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.held_signals import sigterm_held_back
from spec_sdk.registry import Registry
from spec_sdk.run_output import RunOutput, check_writable
from spec_sdk.say import say
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.api.request import RequestOptions
    from spec_sdk.bench.chosen import Chosen
    from spec_sdk.pipeline import Pipeline
    from spec_sdk.speech.recordings import Recording
    from spec_sdk.speech.transcribing import TranscribingRun


@dataclass
class TranscribeConfig:
    """Options of ``task=transcribe``."""

    pipelines: Any = option(
        None,
        "what is compared with plain decoding on the same recordings: a list of pipelines, each with options of its "
        'own after the name, as in [prompt_lookup, "sd_chain policy.depth=4"]',
        means={None: "the run's own pipeline alone; compare=true puts plain decoding beside it"},
    )
    cut: str = option(
        "pause",
        "where recordings longer than 30 s are cut",
        choices={"pause": "where the last 6 s before are quietest", "length": "every 30 s"},
    )
    continued: bool = option(
        False, "tell every window the transcript so far, as much as half of the context holds, one after the other"
    )
    max_num_seqs: int = option(1, "windows of a recording that are answered at once", minimum=1)

    def __post_init__(self) -> None:
        if self.pipelines is not None:
            pipeline_names(self.pipelines, PIPELINES)
        if self.continued and self.max_num_seqs > 1:
            raise UserError("task.max_num_seqs: with task.continued=true a window waits for the one before; use 1")


class Transcribe(Task):
    """Transcribes recordings with a Whisper model; word error rates where there are references."""

    name = "transcribe"
    Config = TranscribeConfig
    config: TranscribeConfig
    without = ("constraint",)

    def run(self, app: Settings) -> int:
        """Transcripts go to stdout, a table to stderr, all of both into the run's directory.

        Returns 1 if a recording turned out to be damaged, which the others do not suffer from; else 0. Raises
        UserError for bad input, before anything is transcribed. An interrupt, or an exception in the middle, keeps the
        transcripts so far, and the windows so far of the recording that it came in, and is raised again.
        """
        from spec_sdk.accuracy.word_errors import require
        from spec_sdk.speech.recordings import read_recordings
        from spec_sdk.speech.transcribing_report import TRANSCRIPTS, metrics_of, show, transcript_lines

        check_options(app)
        assert app.audio is not None
        recordings = read_recordings(app.audio, app.prompt_limit)
        if any(recording.reference is not None for recording in recordings):
            require("en")
        check_writable(app.output_dir)
        chosen, vanilla = self._chosen(app)

        with RunOutput(app.output_dir) as output:
            runs = self._opened(app, chosen, vanilla, output)
            check_languages(runs[0], recordings, app)
            failures: list[dict[str, Any]] = []
            try:
                self._transcribe(app, recordings, runs, failures)
            finally:
                with sigterm_held_back():
                    if any(run.log.events for run in runs) or failures:
                        metrics = metrics_of(runs, app, asdict(self.config), failures)
                        lines = transcript_lines(runs, app.save_prompts)
                        output.save(metrics, app.kept, others={TRANSCRIPTS: lines})
                        show(runs, app)
                        print(f"results in {output.directory}", file=sys.stderr)
        return 1 if failures else 0

    def _chosen(self, app: Settings) -> tuple[list[Chosen], Chosen]:
        """The pipelines of the run, plain decoding last if it is one of them; and plain decoding."""
        from spec_sdk.bench.chosen import chosen_of_run, chosen_vanilla, shared_overrides

        shared = shared_overrides(app.overrides)
        vanilla, given = chosen_vanilla(shared), self.config.pipelines
        chosen = chosen_of_run(app, given, vanilla, shared)
        alone = given is None and chosen and not app.compare
        return (chosen if alone else [*chosen, vanilla]), vanilla

    def _opened(
        self, app: Settings, chosen: Sequence[Chosen], vanilla: Chosen, output: RunOutput
    ) -> list[TranscribingRun]:
        from spec_sdk.events import EventLog
        from spec_sdk.pipeline import build_pipeline, joined_backend
        from spec_sdk.speech.transcribing import TranscribingRun
        from spec_sdk.what_ran import plugins_of

        registry = Registry.discover()
        backend = joined_backend(vanilla.settings, registry, [each.settings for each in chosen])
        base = build_pipeline(vanilla.settings, registry, backend, slots=self.config.max_num_seqs)
        if base.encoder is None:
            raise UserError(f"model.target: {base.target_name} is a text model; name a Whisper model")
        runs = []
        for each in chosen:
            pipeline = base if each is vanilla else self._built(each, base, registry, alone=len(chosen) == 1)
            pipeline.verifier.check(app.sampling)
            log = EventLog(each.name, output.events, registry.hook.spec_sdk_event)
            plugins = plugins_of(each.settings, registry)
            runs.append(TranscribingRun(each.name, pipeline, app, log, each.overrides, plugins))
        return runs

    def _built(self, chosen: Chosen, base: Pipeline, registry: Registry, alone: bool) -> Pipeline:
        from spec_sdk.pipeline import build_pipeline

        try:
            return build_pipeline(chosen.settings, registry, slots=self.config.max_num_seqs, beside=base)
        except UserError as error:
            if alone:
                raise
            raise UserError(f"{PIPELINES}: '{chosen.name}': {error}") from error

    def _transcribe(
        self,
        app: Settings,
        recordings: Sequence[Recording],
        runs: Sequence[TranscribingRun],
        failures: list[dict[str, Any]],
    ) -> None:
        from spec_sdk.speech.transcribing_report import progress_line

        options = request_options(app)
        for index, recording in enumerate(recordings):
            try:
                # once for all pipelines: what is heard does not depend on them
                heard = runs[0].transcriber.hear(recording.path, recording.language or app.language, self.config.cut)
            except UserError as error:
                failures.append({"id": recording.id, "audio": recording.path, "error": str(error)})
                say(f"{index + 1}/{len(recordings)} {error}")
                continue
            if len(runs) > 1 and not runs[0].transcripts:
                for run in runs:
                    run.warm_up(heard)
            turn = index % len(runs)
            for run in [*runs[turn:], *runs[:turn]]:
                found = run.answer(recording, heard, app.translate, app.prompt, self.config.continued, options)
                say(progress_line(index, len(recordings), run, found))
            if len(runs[0].transcripts) > 1:
                sys.stdout.write("\n")
            sys.stdout.write(runs[0].transcripts[-1].transcription.text + "\n")
            sys.stdout.flush()


def check_options(app: Settings) -> None:
    """Raise UserError where there is nothing to transcribe, and for options that would go unheard."""
    if app.audio is None:
        raise UserError("audio: task=transcribe needs something to hear; give audio=FILE.wav, or audio=FILES.jsonl")
    if app.error_bounds:
        raise UserError("error_bounds: they are estimated for decoders without cross-attention; leave them out")


def check_languages(run: TranscribingRun, recordings: Sequence[Recording], app: Settings) -> None:
    """Raise UserError for a language or a task that the model does not know, before anything is computed."""
    tokens = run.transcriber.tokens
    anything = next(iter(tokens.languages), None)
    for recording in recordings:
        try:
            tokens.prompt(recording.language or app.language or anything, app.translate)
        except UserError as error:
            raise error if recording.language is None else UserError(f"{recording.where}: {error}") from None


def request_options(app: Settings) -> RequestOptions:
    """What every window is asked with. The default of max_new_tokens is for texts: not given, the context decides."""
    options: RequestOptions = {"sampling": app.sampling, "ignore_eos": app.ignore_eos}
    if any(override.key_or_group == "max_new_tokens" for override in parse(app.overrides)):
        options["max_new_tokens"] = app.max_new_tokens
    return options
