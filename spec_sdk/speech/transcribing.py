"""One pipeline over all recordings of a run, and what is counted of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.accuracy.word_errors import WordErrors, word_errors
from spec_sdk.api.engine import Engine
from spec_sdk.api.request import RequestOptions
from spec_sdk.events import EventLog
from spec_sdk.metrics import ratio, summarise
from spec_sdk.pipeline import Pipeline
from spec_sdk.settings import Settings
from spec_sdk.speech.recordings import Recording
from spec_sdk.speech.transcriber import Heard, Transcriber, Transcription, Window, transcription
from spec_sdk.speech.work_times import work_times

OF_WINDOWS = ("new_tokens", "finish_reason", "prefill_s", "decode_s", "steps", "drafted", "accepted")
"""What of a window's metrics goes into transcripts.jsonl."""


@dataclass(frozen=True)
class Transcript:
    """What a pipeline made of a recording. ``errors``: beside its reference, None without one."""

    recording: Recording
    transcription: Transcription
    errors: WordErrors | None
    work: Mapping[str, float]

    def as_data(self, pipeline: str, save_reference: bool) -> dict[str, Any]:
        """A line of transcripts.jsonl."""
        found, errors = self.transcription, self.errors
        return {
            "pipeline": pipeline,
            "id": self.recording.id,
            "audio": self.recording.path,
            "seconds": found.seconds,
            "language": found.language,
            "text": found.text,
            "reference": self.recording.reference if save_reference else None,
            "word_error_rate": None if errors is None else errors.rate,
            "errors": None if errors is None else vars(errors),
            "preparing_s": found.preparing_s,
            "answering_s": found.answering_s,
            "real_time_factor": found.real_time_factor,
            "work_s": dict(self.work),
            "windows": [
                {
                    "begin_s": window.begin_s,
                    "end_s": window.end_s,
                    "text": window.text,
                    "token_ids": window.tokens,
                    **{key: window.metrics[key] for key in OF_WINDOWS},
                    "acceptance_rate": window.metrics["acceptance_rate"],
                    "mean_accepted_tokens": window.metrics["mean_accepted_tokens"],
                }
                for window in found.windows
            ],
        }


@dataclass
class TranscribingRun:
    """A pipeline at work. ``name`` and ``overrides``: as it was asked for; ``plugins``: for the record."""

    name: str
    pipeline: Pipeline
    settings: Settings
    log: EventLog
    overrides: Sequence[str] = ()
    plugins: Mapping[str, Any] = field(default_factory=dict)
    transcripts: list[Transcript] = field(default_factory=list)
    unfinished: Transcript | None = None

    def __post_init__(self) -> None:
        self.transcriber = Transcriber(Engine(self.pipeline, self.settings, self.log))

    def warm_up(self, heard: Heard) -> None:
        """Answer a few tokens of silence, untimed: what compiles or allocates does it there."""
        silence_XF, tokens = heard.features[0].new_zeros(heard.features[0].shape), self.transcriber.tokens
        prompt = tokens.prompt(heard.language if tokens.languages else None, False)
        stream = self.pipeline.stream(
            prompt, max_new_tokens=8, input_features=silence_XF, constraint=tokens.suppressed(), ignore_eos=True
        )
        for _ in stream:
            pass

    def answer(
        self,
        recording: Recording,
        heard: Heard,
        translate: bool,
        prompt: str | None,
        continued: bool,
        options: RequestOptions,
    ) -> Transcript:
        """Transcribe a recording that was heard. Raises what :meth:`Transcriber.answer` does; what its first windows
        said is then in ``unfinished``.
        """
        before, began, windows = len(self.log.events), time.perf_counter(), list[Window]()
        try:
            for window in self.transcriber.windows(
                heard, translate=translate, prompt=prompt, continued=continued, **options
            ):
                windows.append(window)
        except BaseException:
            if windows:
                so_far = transcription(heard, windows, translate, time.perf_counter() - began)
                self.unfinished = Transcript(recording, so_far, None, work_times(self.log.events[before:]))
            raise
        found = transcription(heard, windows, translate, time.perf_counter() - began)
        errors = None
        if recording.reference is not None:
            errors = word_errors(recording.reference, found.text, found.language)
        transcript = Transcript(recording, found, errors, work_times(self.log.events[before:]))
        self.transcripts.append(transcript)
        return transcript

    def summary(self) -> dict[str, Any]:
        """Counts over all recordings: those of a run of prompts, and of speech."""
        sounds = [transcript.transcription for transcript in self.transcripts]
        judged = [transcript.errors for transcript in self.transcripts if transcript.errors is not None]
        seconds = sum(sound.seconds for sound in sounds)
        work = sum(sound.preparing_s + sound.answering_s for sound in sounds)
        return {
            **summarise(self.log.events),
            "recordings": len(sounds),
            "audio_s": seconds,
            "word_error_rate": WordErrors.total(judged).rate if judged else None,
            "errors": vars(WordErrors.total(judged)) if judged else None,
            "real_time_factor": ratio(work, seconds),
            "preparing_s": sum(sound.preparing_s for sound in sounds),
            "answering_s": sum(sound.answering_s for sound in sounds),
            "work_s": work_times(self.log.events),
        }

    def cut_off(self) -> int:
        """Windows that ended because no more tokens were allowed."""
        return sum(w.finish_reason == "length" for t in self.transcripts for w in t.transcription.windows)


def same_windows(ours: TranscribingRun, theirs: TranscribingRun) -> tuple[int, int]:
    """Of the windows that both answered: those with the same tokens, and all."""
    pairs = [
        (own.tokens, other.tokens)
        for one, two in zip(ours.transcripts, theirs.transcripts, strict=False)
        for own, other in zip(one.transcription.windows, two.transcription.windows, strict=True)
    ]
    return sum(own == other for own, other in pairs), len(pairs)
