"""What Whisper's decoder is asked with: the tokens of a task, and those that no transcription has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from spec_sdk.contracts import SuppressedTokens
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.tokenizer import Tokenizer

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_SPECIAL = re.compile(r"<\|.*\|>")


class TranscriptionTokens:
    """The special tokens of a Whisper checkpoint, from its generation_config.json, config.json and vocabulary.

    ``languages``: code → token; empty for a model of English alone. Raises UserError for a checkpoint without them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._settings = settings = Fields(tokenizer.generation_settings, "generation_config.json")
        self._vocabulary = tokenizer.vocabulary
        self._texts = {token for name, token in self._vocabulary.items() if not _SPECIAL.fullmatch(name)}
        self._texts -= tokenizer.stop_ids
        self.start = self._token("decoder_start_token_id", "<|startoftranscript|>")
        self.no_timestamps = self._token("no_timestamps_token_id", "<|notimestamps|>")
        named = _token_map(settings, "lang_to_id")
        forced = settings.get("forced_decoder_ids")
        several = bool(named) or (isinstance(forced, list) and len(forced) > 1)
        tokens = named or dict(self._vocabulary)
        self.languages = {
            match[1]: token
            for name, token in sorted(tokens.items(), key=lambda item: item[1])
            if settings.flag("is_multilingual", several) and (match := _LANGUAGE.fullmatch(name))
        }

    def prompt(
        self, language: str | None, translate: bool, text: str | None = None, said: Sequence[int] = ()
    ) -> list[int]:
        """The tokens before a transcription without timestamps. ``text`` is taken for what was said before, and then
        the tokens ``said``, of the transcript so far.

        ``language`` must be given for a model of several. Raises UserError for a language or task that the model does
        not have.
        """
        before: list[int] = []
        if text is not None and text.strip():
            before = self._tokenizer.encode(" " + text.strip(), add_special_tokens=False)
        before += said
        if before:
            before.insert(0, self._token(None, "<|startofprev|>"))
        if not self.languages:
            if translate or language not in (None, "en"):
                option = "translate: true" if translate else f"language: {language!r}"
                raise UserError(f"{option} asks for a multilingual model, and this one transcribes English alone")
            return [*before, self.start, self.no_timestamps]
        if language not in self.languages:
            hint = did_you_mean(str(language), self.languages)
            raise UserError(f"language: the model knows no {language!r}{hint or '; give a code such as en'}")
        name = "translate" if translate else "transcribe"
        task = _token_map(self._settings, "task_to_id").get(name)
        if task is None:
            task = self._token(None, f"<|{name}|>")
        return [*before, self.start, self.languages[language], task, self.no_timestamps]

    def said(self, answer: Sequence[int]) -> list[int]:
        """The tokens of an answer that are text: no end, no times, nothing else in ``<|…|>``."""
        return [token for token in answer if token in self._texts]

    def suppressed(self) -> SuppressedTokens:
        """What the checkpoint rules out everywhere, and at the begin of a transcription."""
        return SuppressedTokens(
            self._settings.token_ids("suppress_tokens"), self._settings.token_ids("begin_suppress_tokens")
        )

    def _token(self, key: str | None, spelling: str) -> int:
        found = self._settings.token_ids(key) if key is not None else ()
        if found:
            return found[0]
        if spelling not in self._vocabulary:
            raise UserError(f"model.target: its tokenizer has no {spelling}, which a transcription begins with")
        return self._vocabulary[spelling]


def _token_map(settings: Fields, key: str) -> Mapping[str, int]:
    """Name → token id; empty if there is none."""
    value: Any = settings.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(_is_id(token) for token in value.values()):
        raise UserError(f"{settings.where}: {key} is no object of token ids")
    return dict(value)


def _is_id(token: object) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and token >= 0
