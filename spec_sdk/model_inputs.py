"""From what a user asks with, texts or sounds, to what a model is given.

Legend: X mel bins, F frames of features, T samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec_sdk.contracts import Matcher
from spec_sdk.errors import UserError
from spec_sdk.model.config import EncoderConfig
from spec_sdk.prompts import Prompt, encode_prompt
from spec_sdk.settings import Settings
from spec_sdk.speech.language import spoken_language
from spec_sdk.speech.log_mel import HOP, RATE, log_mel
from spec_sdk.speech.sound import read_sound, resampled
from spec_sdk.speech.transcription import TranscriptionTokens

if TYPE_CHECKING:
    from spec_sdk.pipeline import Pipeline


@dataclass(frozen=True)
class ModelInput:
    """One request: its ``prompt`` (of audio the name) and the tokens of it, and for a model that hears its features
    [X, F] and what it may answer.
    """

    prompt: Prompt
    tokens: list[int]
    input_features: torch.Tensor | None = None
    constraint: Matcher | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What :meth:`Engine.add` is given besides the tokens."""
        given = {"input_features": self.input_features, "constraint": self.constraint}
        return {key: value for key, value in given.items() if value is not None}


def model_inputs(pipeline: Pipeline, prompts: Sequence[Prompt], app: Settings) -> list[ModelInput]:
    """The requests of a run: one for each of ``prompts`` (with several processes the leader's), or for each window
    of a sound, in which ``prompts`` name the files.

    Raises UserError for audio without a model that hears, and for such a model without audio.
    """
    encoder = pipeline.encoder
    if encoder is None:
        if app.audio is not None:
            raise UserError(f"audio: {pipeline.target_name} is a text model; give model.target=DIR of a Whisper model")
        encoded = pipeline.ranks.decide(lambda: [encode_prompt(pipeline.tokenizer, p, app.chat) for p in prompts])
        constraint = pipeline.constraints.of(app.constraint)
        return [
            ModelInput(prompt, tokens, constraint=constraint)
            for prompt, tokens in zip(prompts or [Prompt(1, "")] * len(encoded), encoded, strict=True)
        ]
    if app.constraint.get("name") != "none":
        raise UserError("constraint: a transcription is not constrained; leave it out")
    if app.audio is None:
        raise UserError(f"audio: {pipeline.target_name} transcribes audio; give audio=FILE.wav")
    return [window for prompt in prompts for window in _windows(pipeline, encoder, prompt, app)]


def _windows(pipeline: Pipeline, encoder: EncoderConfig, audio: Prompt, app: Settings) -> list[ModelInput]:
    """A file's windows of the encoder's length (30 s), each a transcription of its own."""
    sound = read_sound(audio.text)
    samples_T = resampled(sound.samples_T, sound.rate, RATE)
    pieces = torch.split(samples_T, encoder.input_frames * HOP)
    features = [log_mel(piece_T, encoder.features, encoder.input_frames) for piece_T in pieces]
    tokens = TranscriptionTokens(pipeline.tokenizer)
    language = app.language
    if language is None and tokens.languages:
        language = spoken_language(pipeline, tokens, features[0])
    prompt, seconds = tokens.prompt(language, app.translate, app.prompt), encoder.input_frames * HOP / RATE
    return [
        ModelInput(
            audio if len(features) == 1 else Prompt(*[f"{audio.text}, from {i * seconds:g} s on"] * 2),
            prompt,
            features_XF,
            tokens.suppressed(),
        )
        for i, features_XF in enumerate(features)
    ]
