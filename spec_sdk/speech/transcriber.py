"""From sounds to their transcripts, through an engine whose target is a Whisper model.

Legend: X mel bins, F frames of features, T samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import torch

from spec_sdk.accuracy.word_errors import WITHOUT_SPACES
from spec_sdk.api.answer import Answer
from spec_sdk.api.request import Request, RequestOptions
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.speech.language import spoken_language
from spec_sdk.speech.log_mel import HOP, RATE, log_mel
from spec_sdk.speech.sound import Sound, read_sound, resampled
from spec_sdk.speech.transcription import TranscriptionTokens
from spec_sdk.speech.windows import CUTS, windows_of

if TYPE_CHECKING:
    from spec_sdk.api.engine import Engine

ENGLISH = "en"
LOUDEST = 1e10
"""Of a sample. Integers of 32 bits that were not scaled are less; the power of louder ones is beyond float32."""
OURS = ("input_features", "constraint", "n", "chat")
"""Options of a request that a transcription chooses itself."""


@dataclass(frozen=True)
class Heard:
    """A sound as the model is given it: features [X, F] of every window, and where it begins and ends.

    ``seconds``: of the sound. ``preparing_s``: what reading, resampling, features and finding out the language took.
    """

    seconds: float
    language: str
    spans: Sequence[tuple[float, float]]
    features: Sequence[torch.Tensor]
    preparing_s: float


@dataclass(frozen=True)
class Window:
    """What was said from ``begin_s`` to ``end_s``. The other fields are those of :class:`spec_sdk.Answer`."""

    begin_s: float
    end_s: float
    text: str
    tokens: list[int]
    finish_reason: str
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Transcription:
    """A sound's transcript. ``seconds``: of the sound; ``answering_s``: what answering for its windows took, and
    ``preparing_s`` all before.
    """

    text: str
    language: str
    seconds: float
    windows: Sequence[Window]
    preparing_s: float
    answering_s: float

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of sound: below 1 it is faster than the sound."""
        return (self.preparing_s + self.answering_s) / self.seconds


def transcription(heard: Heard, windows: Sequence[Window], translate: bool, answering_s: float) -> Transcription:
    """What the windows of a sound, or the first of them, say together."""
    spoken = ENGLISH if translate else heard.language
    between = "" if spoken in WITHOUT_SPACES else " "
    text = between.join(window.text for window in windows if window.text)
    return Transcription(text, spoken, heard.seconds, windows, heard.preparing_s, answering_s)


class Transcriber:
    """Transcribes with the pipeline of an engine, as many windows at once as the engine answers.

    ``tokens``: the special tokens of the target. Raises UserError for an engine of a text model.
    """

    def __init__(self, engine: Engine) -> None:
        encoder = engine.pipeline.encoder
        if encoder is None:
            name = engine.pipeline.target_name
            raise UserError(f"audio: {name} is a text model; give model.target=DIR of a Whisper model")
        self._engine = engine
        self._encoder = encoder
        self.tokens = TranscriptionTokens(engine.tokenizer)

    def transcribe(
        self,
        sound: str | Sound,
        *,
        language: str | None = None,
        translate: bool = False,
        prompt: str | None = None,
        cut: str = "pause",
        continued: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Transcription:
        """The transcript of a file, or of samples: :meth:`hear`, and then :meth:`answer`, which say what is raised."""
        heard = self.hear(sound, language, cut)
        return self.answer(heard, translate=translate, prompt=prompt, continued=continued, **options)

    def hear(self, sound: str | Sound, language: str | None = None, cut: str = "pause") -> Heard:
        """Features of a file (its name) or of samples, in windows that the encoder takes, 30 s each.

        ``language``: a code such as ``en``; None has a multilingual model find it out. ``cut``: where windows end
        (:data:`~spec_sdk.speech.windows.CUTS`). Raises UserError for a sound that cannot be read, and for a language
        that the model does not know.
        """
        if cut not in CUTS:
            raise UserError(f"cut: {cut!r} is unknown{did_you_mean(str(cut), CUTS)}")
        if language is not None:
            # refused before anything is computed
            self.tokens.prompt(language, translate=False)
        began = time.perf_counter()
        given = read_sound(sound) if isinstance(sound, str) else sound
        samples_T = resampled(given.samples_T.float(), given.rate, RATE)
        named = f" {sound}" if isinstance(sound, str) else ""
        if not len(samples_T):
            raise UserError(f"audio:{named} holds no samples at {RATE:,} Hz")
        if (loudest := float(samples_T.abs().max())) > LOUDEST:
            raise UserError(f"audio:{named} has samples up to {loudest:.0e}; scale them to -1 ... 1")
        frames = self._encoder.input_frames
        places = windows_of(samples_T, frames * HOP, cut)
        features = [log_mel(samples_T[first:end], self._encoder.features, frames) for first, end in places]
        if language is None and self.tokens.languages:
            language = spoken_language(self._engine.pipeline, self.tokens, features[0])
        return Heard(
            given.seconds,
            language or ENGLISH,
            [(first / RATE, end / RATE) for first, end in places],
            features,
            time.perf_counter() - began,
        )

    def answer(
        self,
        heard: Heard,
        *,
        translate: bool = False,
        prompt: str | None = None,
        continued: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Transcription:
        """What is said in a sound that was heard, without timestamps.

        ``translate``: into English. ``prompt``: what was said before. ``continued``: every window is also told the
        transcript so far, as much as half of the context holds, and windows are answered one after the other.
        ``options``: of every window's request; ``max_new_tokens`` is by default what the context leaves. Raises
        UserError for options that are not valid, and whatever a request fails with.
        """
        began = time.perf_counter()
        windows = list(self.windows(heard, translate=translate, prompt=prompt, continued=continued, **options))
        return transcription(heard, windows, translate, time.perf_counter() - began)

    def windows(
        self,
        heard: Heard,
        *,
        translate: bool = False,
        prompt: str | None = None,
        continued: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Window]:
        """The windows of :meth:`answer`, in their order, each when it and all before it are answered."""
        if (own := next((name for name in OURS if name in options), None)) is not None:
            raise UserError(f"{own}: a transcription chooses it; leave it out")
        language = heard.language if self.tokens.languages else None
        # checks language and task, and is what every window is asked with that nothing was said before
        first = self.tokens.prompt(language, translate, prompt)
        if continued:
            answers = self._one_after_the_other(heard, first, language, translate, prompt, options)
        else:
            answers = self._answers([first] * len(heard.features), heard.features, options)
        decode = self._engine.tokenizer.decode
        for span, a in zip(heard.spans, answers, strict=True):
            yield Window(*span, decode(self.tokens.said(a.tokens)).strip(), a.tokens, a.finish_reason, a.metrics)

    def _one_after_the_other(
        self,
        heard: Heard,
        first: list[int],
        language: str | None,
        translate: bool,
        prompt: str | None,
        options: RequestOptions,
    ) -> Iterator[Answer]:
        said: list[int] = []
        for features_XF in heard.features:
            asked = self._continuing(language, translate, prompt, said) if said else first
            for answer in self._answers([asked], [features_XF], options):
                said += self.tokens.said(answer.tokens)
                yield answer

    def _continuing(self, language: str | None, translate: bool, prompt: str | None, said: Sequence[int]) -> list[int]:
        """A prompt with as much of the transcript so far as half of the context holds, the last part of it."""
        whole = self.tokens.prompt(language, translate, prompt, said)
        asking = len(self.tokens.prompt(language, translate))
        # behind <|startofprev|>
        most = self._engine.context // 2 - 1
        before = whole[1 : len(whole) - asking]
        return [whole[0], *before[-most:], *whole[len(whole) - asking :]]

    def _answers(
        self, prompts: Sequence[list[int]], features: Sequence[torch.Tensor], options: RequestOptions
    ) -> Iterator[Answer]:
        suppressed = self.tokens.suppressed()
        requests = []
        for tokens, features_XF in zip(prompts, features, strict=True):
            own: RequestOptions = {
                "max_new_tokens": max(1, self._engine.context - len(tokens)),
                **options,
                "input_features": features_XF,
                "constraint": suppressed,
            }
            requests.append(Request(tokens, **own))
        for answer in self._engine.answers(requests):
            if answer.error is not None:
                raise answer.error
            yield answer
