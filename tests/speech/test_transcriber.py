"""Transcripts of whole sounds: transformers' tokens window by window, from every pipeline, alone or together."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import Engine, UserError
from spec_sdk.contracts import SuppressedTokens
from spec_sdk.speech.log_mel import log_mel
from spec_sdk.speech.sound import Sound
from spec_sdk.speech.transcriber import Transcriber, Transcription
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_whisper import FRAMES, MELS, RATE, sound, write_distilled, write_whisper

NEW_TOKENS = 24


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path, Any]:
    """A target and transformers' model of it, and a student with its encoder."""
    place = tmp_path_factory.mktemp("models")
    target = write_whisper(place / "target", lively=True)
    student = write_distilled(place / "student", target, [0, 5])
    return place / "target", target, place / "student", student


@functools.cache
def transcriber_of(place: Path, pipeline: str = "vanilla", slots: int = 1, *overrides: str) -> Transcriber:
    return Transcriber(Engine.from_pipeline(pipeline, target=place, overrides=overrides, max_num_seqs=slots))


def generated(model: Any, samples_T: torch.Tensor, **options: Any) -> list[int]:
    """Transformers' new tokens, without prompt and end."""
    with torch.no_grad():
        tokens: list[int] = model.generate(
            log_mel(samples_T, MELS, FRAMES)[None],
            **{"task": "transcribe", "return_timestamps": False, "max_new_tokens": NEW_TOKENS, **options},
        )[0].tolist()
    return words(tokens)


def words(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token < 480]


def tokens_of(transcription: Transcription) -> list[list[int]]:
    return [words(window.tokens) for window in transcription.windows]


def test_windows_are_transcribed_as_transformers_does(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    place, model, _, _ = checkpoints
    samples_T, transcriber = sound(4, 2.4), transcriber_of(place)
    found = transcriber.transcribe(Sound(samples_T, RATE), language="de", max_new_tokens=NEW_TOKENS)
    spans = [(window.begin_s, window.end_s) for window in found.windows]
    assert spans[0][0] == 0 and spans[-1][1] == found.seconds == 2.4 and len(spans) >= 3
    parts = [samples_T[round(begin * RATE) : round(end * RATE)] for begin, end in spans]
    assert tokens_of(found) == [generated(model, part_T, language="de") for part_T in parts]
    assert found.text == " ".join(window.text for window in found.windows if window.text)
    assert found.language == "de" and found.real_time_factor > 0


def test_what_is_suppressed_is_not_said(
    checkpoints: tuple[Path, Any, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    transcriber = transcriber_of(checkpoints[0])

    def said() -> list[int]:
        options: dict[str, Any] = {"language": "de", "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        return list(transcriber.transcribe(Sound(sound(4), RATE), **options).windows[0].tokens)

    first = said()[0]
    monkeypatch.setattr(type(transcriber.tokens), "suppressed", lambda tokens: SuppressedTokens([first], []))
    assert first not in said()


def test_the_language_is_that_of_the_first_window(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    place, model, _, _ = checkpoints
    samples_T = sound(2, 1.7)
    found = transcriber_of(place).transcribe(Sound(samples_T, RATE), cut="length", max_new_tokens=NEW_TOKENS)
    first_T = samples_T[:RATE]
    assert tokens_of(found)[0] == generated(model, first_T)
    with torch.no_grad():
        heard = model.detect_language(log_mel(first_T, MELS, FRAMES)[None])
    assert transcriber_of(place).tokens.languages[found.language] == int(heard)


def test_translating(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    place, model, _, _ = checkpoints
    found = transcriber_of(place).transcribe(
        Sound(sound(5), RATE), language="fr", translate=True, max_new_tokens=NEW_TOKENS
    )
    assert tokens_of(found) == [generated(model, sound(5), language="fr", task="translate")]
    assert found.language == "en"


def test_without_a_limit_the_context_is_one(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    found = transcriber_of(checkpoints[0]).transcribe(Sound(sound(1), RATE), language="en", ignore_eos=True)
    assert [len(window.tokens) for window in found.windows] == [96 - 4]
    assert found.windows[0].finish_reason == "length"


@pytest.mark.parametrize("pipeline", ["sd_chain", "suffix", "prompt_lookup", "easyspec_tree", "layer_skip_chain"])
@pytest.mark.parametrize("continued", [False, True])
def test_every_pipeline_has_plain_decodings_tokens(
    pipeline: str, continued: bool, checkpoints: tuple[Path, Any, Path, Any]
) -> None:
    options: dict[str, Any] = {"language": "en", "max_new_tokens": 16, "continued": continued, "ignore_eos": True}
    plain = transcriber_of(checkpoints[0]).transcribe(Sound(sound(7, 2.5), RATE), **options)
    found = transcriber_of(checkpoints[0], pipeline).transcribe(Sound(sound(7, 2.5), RATE), **options)
    assert tokens_of(found) == tokens_of(plain) and len(plain.windows) >= 3


@pytest.mark.parametrize("sampler", ["exact", "reference", "sigmoid"])
def test_samplers_and_a_seed(sampler: str, checkpoints: tuple[Path, Any, Path, Any]) -> None:
    """At a temperature a seed makes answers the same again, alone and with others at once; another seed others."""
    place = checkpoints[0]
    alone, together = (transcriber_of(place, "sd_chain", slots, f"sampler={sampler}") for slots in (1, 3))
    options: dict[str, Any] = {"language": "en", "max_new_tokens": 12, "temperature": 0.9, "ignore_eos": True}
    given = Sound(sound(7, 2.5), RATE)
    first = tokens_of(alone.transcribe(given, seed=1, **options))
    assert tokens_of(together.transcribe(given, seed=1, **options)) == first
    assert tokens_of(alone.transcribe(given, seed=2, **options)) != first


def test_windows_at_once_are_answered_as_alone(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    options: dict[str, Any] = {"language": "en", "max_new_tokens": NEW_TOKENS}
    one, four = (transcriber_of(checkpoints[0], "sd_chain", slots) for slots in (1, 4))
    given = Sound(sound(9, 3.6), RATE)
    assert tokens_of(four.transcribe(given, **options)) == tokens_of(one.transcribe(given, **options))


def test_what_was_transcribed_is_told_to_the_next_window(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    """The prompt of window i is <|startofprev|>, all words before as far as half of the context goes, and the task."""
    transcriber = transcriber_of(checkpoints[0])
    given = Sound(sound(7, 3.5), RATE)
    found = transcriber.transcribe(given, language="en", max_new_tokens=20, continued=True, prompt="of water")
    heard = transcriber.hear(given, "en")
    said: list[int] = []
    for window, features_XF in zip(found.windows, heard.features, strict=True):
        asked = transcriber.tokens.prompt("en", False)
        before = [*transcriber._engine.tokenizer.encode(" of water", add_special_tokens=False), *said][-47:]
        (answer,) = transcriber._engine.generate(
            [transcriber.tokens.prompt("en", False, said=before)[0], *before, *asked],
            max_new_tokens=20,
            input_features=features_XF,
            constraint=transcriber.tokens.suppressed(),
        )
        assert window.tokens == answer.tokens
        said += transcriber.tokens.said(answer.tokens)
    assert len(said) > 47
    apart = transcriber.transcribe(given, language="en", max_new_tokens=20, prompt="of water")
    assert tokens_of(apart)[0] == tokens_of(found)[0] and tokens_of(apart) != tokens_of(found)


def test_an_assistant_of_transformers_gives_the_same(checkpoints: tuple[Path, Any, Path, Any]) -> None:
    """Assisted generation of transformers and our chain, with the same student: both have plain greedy tokens."""
    place, model, student_place, student = checkpoints
    transcriber = transcriber_of(place, "sd_chain", 1, f"model.draft={student_place}")
    assert transcriber._engine.pipeline.draft_name == "student, the target's encoder"
    accepted = 0
    for seed in range(4):
        found = transcriber.transcribe(Sound(sound(seed), RATE), language="en", max_new_tokens=NEW_TOKENS)
        plain = generated(model, sound(seed), language="en")
        assert tokens_of(found) == [plain]
        assert generated(model, sound(seed), language="en", assistant_model=student, do_sample=False) == plain
        accepted += found.windows[0].metrics["accepted"]
    assert accepted > 0


def test_what_is_wrong_is_one_line(checkpoints: tuple[Path, Any, Path, Any], tmp_path: Path) -> None:
    transcriber, given = transcriber_of(checkpoints[0]), Sound(sound(1), RATE)
    for options, message in (
        ({"language": "xx"}, "language: the model knows no 'xx'"),
        ({"cut": "paus"}, "cut: 'paus' is unknown, did you mean 'pause'"),
        ({"language": "en", "input_features": torch.zeros(2)}, "input_features: a transcription chooses it"),
        ({"language": "en", "max_new_tokens": 95}, "exceed the context of 96"),
        ({"language": "en", "temprature": 1}, "temprature: unknown option, did you mean 'temperature'"),
    ):
        with pytest.raises(UserError, match=message):
            transcriber.transcribe(given, **options)
    with pytest.raises(UserError, match="holds no samples"):
        transcriber.transcribe(Sound(torch.zeros(0), RATE))
    write_checkpoint(tmp_path)
    with pytest.raises(UserError, match="is a text model"):
        Transcriber(Engine.from_pipeline("vanilla", target=tmp_path))
