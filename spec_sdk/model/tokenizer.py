"""A model's tokenizer: text to ids and back, streaming, chat prompts, and which ids end an answer."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, SupportsIndex, cast

from tokenizers import Tokenizer as FastTokenizer

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import read_text
from spec_sdk.model.chat_template import ChatTemplate
from spec_sdk.model.config_fields import Fields, read_json_object
from spec_sdk.model.lfs_pointer import check_pointer
from spec_sdk.model.token_bytes import bytes_per_token, raw_bytes
from spec_sdk.model.tokenizer_stream import REPLACEMENT, TokenStream
from spec_sdk.prompt_lines import check_unicode

TOKENIZER_NAME = "tokenizer.json"
WORD_BEGIN = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for the space before a word."""
SHORT = 4096
"""Characters of a text that is encoded while other threads wait: only a batch, of one too, lets them run."""


class Tokenizer:
    """Built from the tokenizer files of a Hugging Face-layout directory.

    ``stop_ids``: what ends an answer by the model's own files (generation_config, config and tokenizer_config).
    ``generation_settings``: what generation_config.json says, and config.json where that is silent.
    ``vocabulary``: token → id, added tokens included. ``model_vocab_size`` is the number of embedding rows.
    """

    def __init__(self, directory: Path, model_vocab_size: int) -> None:
        self._where = directory / TOKENIZER_NAME
        self._model_vocab_size = model_vocab_size
        self._fast = _load(self._where)
        settings = {
            name: read_json_object(directory / name) if (directory / name).is_file() else {}
            for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
        }
        tokenizer_config = settings["tokenizer_config.json"]
        self._special_tokens = _special_tokens(settings["special_tokens_map.json"]) | _special_tokens(tokenizer_config)
        self._bos_id = self._fast.token_to_id(self._special_tokens.get("bos_token", ""))
        self._add_bos = _adds_bos(self._fast, self._bos_id) or tokenizer_config.get("add_bos_token") is True
        self._template = _chat_template(directory, tokenizer_config, self._special_tokens)
        self.stop_ids = self._stop_ids(directory, settings)
        self.generation_settings = {**settings["config.json"], **settings["generation_config.json"]}

    @functools.cached_property
    def vocabulary(self) -> Mapping[str, int]:
        return dict(self._fast.get_vocab(with_added_tokens=True))

    @functools.cached_property
    def bytes_per_token(self) -> int | None:
        """Bytes of a text that a token may stand for, at most; None where no such number is known."""
        return bytes_per_token(self.to_json())

    def to_json(self) -> str:
        """The tokenizer as the text of a ``tokenizer.json``, for libraries that read that."""
        return self._fast.to_str()

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def template_names(self, name: str) -> bool:
        """Whether the chat template has a role or a field of a message by this name."""
        return self._template is not None and name in self._template.names

    def template_mentions(self, text: str) -> bool:
        """Whether this text stands in the chat template."""
        return self._template is not None and self._template.mentions(text)

    @property
    def template_variables(self) -> frozenset[str]:
        """What the chat template looks up besides what messages have, such as ``tools`` or ``enable_thinking``."""
        return frozenset() if self._template is None else self._template.variables

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``, with the tokens the model wants around it (such as BOS) unless switched off.

        Raises UserError for what is no text, and for text with a token that the model has no embedding for.
        """
        try:
            if len(text) <= SHORT:
                ids = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
            else:
                [encoded] = self._fast.encode_batch([text], add_special_tokens=add_special_tokens)
                ids = encoded.ids
        except TypeError as error:
            if isinstance(text, str):
                check_unicode(text, "text")
            raise UserError(f"text: {text!r} is no text") from error
        if add_special_tokens:
            ids = self._with_bos(ids)
        largest = max(ids, default=0)
        if largest >= self._model_vocab_size:
            raise UserError(
                f"the text has the token '{self._fast.id_to_token(largest)}' (id {largest}), which the model does not "
                f"know: it has {self._model_vocab_size} tokens"
            )
        return list(ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, kept: Set[int] = frozenset()) -> str:
        """Text of ``ids``. Ids without a token (padding rows of the model) decode to nothing. ``kept``: special tokens
        that are not skipped where others are. Raises UserError for what is no id at all.
        """
        try:
            given = list(ids)
        except TypeError as error:
            raise UserError(f"tokens: {ids!r} is no list of token ids") from error
        try:
            if skip_special_tokens and kept:
                given = [one for one in given if one in kept or one not in self._special_ids]
                skip_special_tokens = False
            return self._fast.decode(given, skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError) as error:
            raise UserError(f"tokens: {next(filterfalse(_is_id, given))!r} is no token id") from error

    def piece(self, token: int) -> str:
        """The text of one token as it stands in the middle of a text; U+FFFD for bytes that are no whole character.
        Raises UserError as :meth:`decode`.
        """
        text = self.decode([token], skip_special_tokens=False)
        # SentencePiece's decoders drop the space before the first word of a text
        begins_word = (self._fast.id_to_token(token) or "").startswith(WORD_BEGIN)
        return f" {text}" if begins_word and not text.startswith(" ") else text

    def bytes_of(self, token: int) -> bytes:
        """What one token stands for as :meth:`piece` has it, and where that is a part of a character its own bytes."""
        text = self.piece(token)
        return raw_bytes(self._fast.id_to_token(token) or "", text) if REPLACEMENT in text else text.encode()

    def stream(self, kept: Set[int] = frozenset()) -> TokenStream:
        """A new stream that decodes as :meth:`decode` does."""
        return TokenStream(functools.partial(self.decode, kept=kept) if kept else self.decode)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """The ids of those of these texts that are special tokens."""
        ids = {self._fast.token_to_id(text) for text in texts}
        return frozenset(one for one in ids if one in self._special_ids)

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(one for one, token in self._fast.get_added_tokens_decoder().items() if token.special)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation (``role`` and ``content`` per message), up to where the assistant answers.

        BOS is there exactly once if the template writes it or the model wants it before any text. Raises UserError
        without a template, or if the template refuses the messages.
        """
        return self.encode_rendered(self.render(messages))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The text of a conversation that :meth:`chat` encodes, but for BOS. ``tools`` and ``variables`` are for the
        template (:meth:`ChatTemplate.render`). Raises UserError as :meth:`chat` does.
        """
        if self._template is None:
            raise UserError(f"{self._where.parent}: this model has no chat template")
        return self._template.render(messages, tools, variables)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a text that a chat template wrote, or of the beginning of one."""
        return self._with_bos(self.encode(text, add_special_tokens=False))

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self._add_bos and self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def _stop_ids(self, directory: Path, settings: Mapping[str, Mapping[str, Any]]) -> frozenset[int]:
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            ids.update(Fields(settings[name], str(directory / name)).token_ids("eos_token_id"))
        eos = self._fast.token_to_id(self._special_tokens.get("eos_token", ""))
        if eos is not None:
            ids.add(eos)
        return frozenset(ids)


def _load(path: Path) -> FastTokenizer:
    if not path.is_file():
        raise UserError(
            f"{path.parent}: has no {TOKENIZER_NAME}; save the model's fast tokenizer there (with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    try:
        fast = FastTokenizer.from_file(str(path))
    # the tokenizers library raises bare Exception for whatever is wrong with the file
    except Exception as error:
        check_pointer(path)
        raise UserError(f"{path}: is not a tokenizer: {message_of(error)}") from error
    fast.no_truncation()
    fast.no_padding()
    return fast


def _is_id(one: object) -> bool:
    """Whether this could be an id of some tokenizer: the library's are 32 bits wide."""
    try:
        return 0 <= operator.index(cast(SupportsIndex, one)) < 2**32
    except TypeError:
        return False


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Role (``bos_token`` ...) → token, from either spelling: a string or an object with ``content``."""
    found = {}
    for role, value in config.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if role.endswith("_token") and isinstance(content, str):
            found[role] = content
    return found


def _adds_bos(fast: FastTokenizer, bos_id: int | None) -> bool:
    """Whether the tokenizer by itself puts BOS before a text."""
    return bos_id is not None and fast.encode("a", add_special_tokens=True).ids[:1] == [bos_id]


def _chat_template(
    directory: Path, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """The template from chat_template.jinja, chat_template.json or tokenizer_config.json, in this order. Of several,
    the one that is called ``default``, with ``tool_use`` for tools.
    """
    jinja, older = directory / "chat_template.jinja", directory / "chat_template.json"
    if jinja.is_file():
        where = jinja
        source: Any = read_text(jinja, f"{jinja}:")
    elif older.is_file():
        where, source = older, read_json_object(older).get("chat_template")
    else:
        where, source = directory / "tokenizer_config.json", config.get("chat_template")
    tool_use: Any = None
    if isinstance(source, list):
        named = {str(item.get("name")): item.get("template") for item in source if isinstance(item, Mapping)}
        source, tool_use = named.get("default"), named.get("tool_use")
    elif (beside := directory / "additional_chat_templates" / "tool_use.jinja").is_file():
        tool_use = read_text(beside, f"{beside}:")
    if source is None:
        return None
    if not isinstance(source, str) or not isinstance(tool_use, str | None):
        raise UserError(f"{where}: the chat template is not text")
    with_tools = None if tool_use is None else ChatTemplate(tool_use, special_tokens, f"{where}: tool_use")
    return ChatTemplate(source, special_tokens, str(where), with_tools)
