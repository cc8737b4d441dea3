"""The tokens before a transcription, from checkpoints old and new, multilingual and English."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.speech.transcription import TranscriptionTokens
from tests.support.tiny_whisper import generation_config, whisper_tokenizer


def tokens_of(directory: Path, settings: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Any:
    """The tokens of a checkpoint whose generation_config.json says ``settings``; None: it has no such file."""
    tokenizer = whisper_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(config or {}))
    if settings is not None:
        (directory / "generation_config.json").write_text(json.dumps(settings))
    return TranscriptionTokens(Tokenizer(directory, tokenizer.get_vocab_size()))


def spelled(tokens: list[int]) -> str:
    return str(whisper_tokenizer().decode(tokens, skip_special_tokens=False))


def multilingual() -> dict[str, Any]:
    return dict(generation_config(whisper_tokenizer()).to_dict())


def test_a_multilingual_model(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, multilingual())
    assert list(tokens.languages) == ["en", "de", "fr"]
    prompt = tokens.prompt("de", translate=False)
    assert spelled(prompt) == "<|startoftranscript|><|de|><|transcribe|><|notimestamps|>"
    prompt = tokens.prompt("en", translate=True, text=" what was said ")
    assert spelled(prompt) == ("<|startofprev|> what was said<|startoftranscript|><|en|><|translate|><|notimestamps|>")
    assert tokens.prompt("en", translate=False, text="  ") == tokens.prompt("en", translate=False)


@pytest.mark.parametrize(("language", "message"), [("dee", "did you mean 'de'"), (None, "knows no None"), ("xx", "xx")])
def test_a_language_that_the_model_does_not_know(language: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        tokens_of(tmp_path, multilingual()).prompt(language, translate=False)


def test_a_model_of_english_alone(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, dict(generation_config(whisper_tokenizer(), multilingual=False).to_dict()))
    assert tokens.languages == {}
    for language in (None, "en"):
        assert spelled(tokens.prompt(language, translate=False)) == "<|startoftranscript|><|notimestamps|>"
    with pytest.raises(UserError, match="language: 'de' asks for a multilingual model"):
        tokens.prompt("de", translate=False)
    with pytest.raises(UserError, match="translate: true asks for a multilingual model"):
        tokens.prompt("en", translate=True)


def test_an_old_checkpoint_without_maps(tmp_path: Path) -> None:
    """Before generation_config.json had them: what is forced tells whether it has languages, the vocabulary which."""
    vocabulary = whisper_tokenizer().get_vocab()
    forced = [[1, None], [2, vocabulary["<|transcribe|>"]], [3, vocabulary["<|notimestamps|>"]]]
    config = {
        "decoder_start_token_id": vocabulary["<|startoftranscript|>"],
        "forced_decoder_ids": forced,
        "suppress_tokens": [9, -1],
    }
    tokens = tokens_of(tmp_path, config=config)
    assert list(tokens.languages) == ["en", "de", "fr"]
    prompt = tokens.prompt("fr", translate=True)
    assert spelled(prompt) == "<|startoftranscript|><|fr|><|translate|><|notimestamps|>"


def test_no_special_tokens_and_wrong_maps(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lang_to_id is no object of token ids"):
        tokens_of(tmp_path, {**multilingual(), "lang_to_id": {"<|en|>": "five"}})
    from tests.support.text_checkpoints import text_tokenizer

    text_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(UserError, match="its tokenizer has no <|startoftranscript|>".replace("|", r"\|")):
        TranscriptionTokens(Tokenizer(tmp_path, 480))
