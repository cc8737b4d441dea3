"""Where prompts come from: the command line, a file, or standard input; and how a prompt becomes tokens."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_sdk.counted import counted
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded, read_text
from spec_sdk.prompt_lines import check_unicode, has_json_lines, parsed_line, repeated_id
from spec_sdk.settings import Settings
from spec_sdk.standard_input import piped_text, whole_text

if TYPE_CHECKING:
    from spec_sdk.model.tokenizer import Tokenizer

DEFAULT_PROMPT = "Explain in a few sentences why the sky is blue during the day and red at sunset."
STDIN = "-"
SPEC_BENCH_SAMPLE = "spec_bench_sample"
SUMMARIES_SAMPLE, COPIES_SAMPLE = "summaries_sample", "copies_sample"
SHIPPED = {
    name: Path(__file__).parent / "data" / f"{name}.jsonl"
    for name in (SPEC_BENCH_SAMPLE, SUMMARIES_SAMPLE, COPIES_SAMPLE)
}
"""Prompts that come with spec-sdk, by the name that stands for their file; a file of that name is ``./NAME``."""


@dataclass(frozen=True)
class Prompt:
    """What is asked: a text, or the messages of a chat (``role``, ``content``) up to where the assistant answers.

    ``id``: what result files call it: the line's ``question_id`` or ``id``, else its number, from 1 on.
    """

    id: int | str
    content: str | tuple[Mapping[str, str], ...]

    @property
    def text(self) -> str:
        """The text, or the conversation as one, for people to read."""
        if isinstance(self.content, str):
            return self.content
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in self.content)


def read_prompts(settings: Settings) -> list[Prompt]:
    """The prompts of this run, at least one, none empty. Raises UserError for what cannot be read.

    ``prompt`` and ``prompt_file`` come first; without them, standard input if something was piped into it; else the
    default prompt. With ``audio`` they are the names of its files, which are looked into.
    """
    if settings.audio is not None:
        # not above: it brings torch along
        from spec_sdk.speech.sound import check_sound

        for name in settings.audio:
            check_sound(name)
        return [Prompt(name, name) for name in settings.audio][: settings.prompt_limit]
    if settings.prompt is not None:
        prompts = [Prompt(1, whole_text() if settings.prompt == STDIN else settings.prompt)]
        where = "prompt: standard input" if settings.prompt == STDIN else "prompt: it"
    elif settings.prompt_file is not None:
        prompts, where = read_prompt_file(settings.prompt_file), f"prompt_file: {settings.prompt_file}"
    else:
        piped = piped_text()
        prompts, where = [Prompt(1, DEFAULT_PROMPT if piped is None else piped)], "prompt: standard input"
    for prompt in prompts:
        check_text(prompt.text, where)
    return prompts[: settings.prompt_limit]


def check_text(text: str, where: str = "prompt: it") -> None:
    """Raise UserError for a prompt, told as ``where``, that is empty or no Unicode text."""
    if not text.strip():
        raise UserError(f"{where} is empty; give a text, as in prompt='Why is the sky blue?'")
    check_unicode(text, "prompt")


def check_length(prompt: int, new: int, context: int, index: int = 0, prompts: int = 1) -> None:
    """Raise UserError if a prompt and its answer do not fit the context (all in tokens)."""
    if prompt + new <= context:
        return
    which = f"prompt {index + 1} of {prompts}" if prompts > 1 else "prompt"
    room = context - prompt
    if context < 2:
        advice = "no answer fits: is the model's max_position_embeddings right?"
    else:
        advice = f"use max_new_tokens={room} or less" if room >= 1 else "shorten it"
    its = counted(prompt, "token")
    raise UserError(f"{which}: its {its} and max_new_tokens={new} exceed the context of {context}; {advice}")


def read_prompt_texts(name: str, option: str = "prompt_file") -> list[str]:
    """The prompts of a file (:func:`read_prompt_file`) for a use that has no place for chats. Raises UserError."""
    texts = []
    for prompt in read_prompt_file(name, option, ids_differ=False):
        if not isinstance(prompt.content, str):
            raise UserError(f"{option}: {name}: prompt {prompt.id} has messages, and only a text is of use here")
        texts.append(prompt.content)
    return texts


def read_prompt_file(name: str, option: str = "prompt_file", ids_differ: bool = True) -> list[Prompt]:
    """A text file is one prompt; ``.jsonl`` (``.ndjson``) has one per line. ``-`` is standard input, read as text; a
    name of :data:`SHIPPED` is that file.

    Raises UserError, naming ``option``, for what cannot be read, and if ``ids_differ`` for two prompts of one id.
    """
    if name == STDIN:
        return [Prompt(1, whole_text())]
    if not name:
        raise UserError(f"{option}: it names no file")
    path = SHIPPED.get(name) or expanded(name, option)
    if not path.exists():
        raise UserError(f"{option}: {name} does not exist{_nearest_shipped(name)}")
    text = read_text(path, f"{option}: {name}")
    if not has_json_lines(path):
        return [Prompt(1, text.rstrip("\n"))]
    prompts, ids = list[Prompt](), set[int | str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{option}: {name} line {number}"
            prompts.append(Prompt(*parsed_line(line, number, where)))
            if ids_differ and prompts[-1].id in ids:
                raise UserError(f"{where}: {repeated_id(prompts[-1].id, number)}")
            ids.add(prompts[-1].id)
    if not prompts:
        raise UserError(f"{option}: {name} has no lines")
    return prompts


def _nearest_shipped(name: str) -> str:
    """``", did you mean 'x'?"`` where ``name`` looks like one of the prompts that come with spec-sdk."""
    stem = Path(name).stem
    return did_you_mean(stem, SHIPPED) if difflib.get_close_matches(stem, SHIPPED, n=1) else ""


def encode(tokenizer: Tokenizer, text: str, chat: bool | None) -> list[int]:
    """The token ids of a text; ``chat`` None applies the chat template if there is one.

    Raises UserError for ``chat`` without a template.
    """
    if chat and not tokenizer.has_chat_template:
        raise UserError("chat: this model has no chat template; use chat=false")
    if chat or (chat is None and tokenizer.has_chat_template):
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def encode_messages(tokenizer: Tokenizer, messages: Sequence[Any], chat: bool | None) -> list[int]:
    """The token ids of a chat. Raises UserError without a template, or for messages that are none."""
    if chat is False:
        raise UserError("chat: messages need the model's chat template; leave out chat=False")
    for number, message in enumerate(messages, start=1):
        for key in ("role", "content"):
            if not isinstance(message, Mapping) or not isinstance(message.get(key), str):
                raise UserError(f"prompt: message {number} has no text '{key}'")
    if not tokenizer.has_chat_template:
        raise UserError("prompt: this model has no chat template for messages; give a text")
    return tokenizer.chat(messages)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, chat: bool | None) -> list[int]:
    """The token ids of a prompt. Raises UserError as :func:`encode` and :func:`encode_messages` do."""
    if isinstance(prompt.content, str):
        return encode(tokenizer, prompt.content, chat)
    return encode_messages(tokenizer, prompt.content, chat)
