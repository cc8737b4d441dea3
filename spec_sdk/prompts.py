"""Where prompts come from: the command line, a file, or standard input; and how a text becomes a prompt's tokens."""

from __future__ import annotations

import difflib
import functools
import json
import os
import select
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.model.tokenizer import Tokenizer

DEFAULT_PROMPT = "Explain in a few sentences why the sky is blue during the day and red at sunset."
STDIN = "-"
SHIPPED = {"spec_bench_sample": Path(__file__).parent / "data" / "spec_bench_sample.jsonl"}
"""Prompts that come with spec-sdk, by the name that stands for their file; a file of that name is ``./NAME``."""


def read_prompts(settings: Settings) -> list[str]:
    """The prompts of this run, at least one, none empty. Raises UserError for what cannot be read.

    ``prompt`` and ``prompt_file`` come first; without them, standard input if something was piped into it; else the
    default prompt. With ``audio`` they are the names of its files, which are looked into.
    """
    if settings.audio is not None:
        # not above: it brings torch along
        from spec_sdk.speech.wav import read_wav

        for name in settings.audio:
            read_wav(name)
        return list(settings.audio)[: settings.prompt_limit]
    if settings.prompt is not None:
        texts = [_stdin_text() if settings.prompt == STDIN else settings.prompt]
        where = "prompt: standard input" if settings.prompt == STDIN else "prompt: it"
    elif settings.prompt_file is not None:
        texts, where = read_prompt_file(settings.prompt_file), f"prompt_file: {settings.prompt_file}"
    else:
        piped = _piped_text()
        texts, where = [DEFAULT_PROMPT if piped is None else piped], "prompt: standard input"
    for text in texts:
        check_text(text, where)
    return texts[: settings.prompt_limit]


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
    advice = f"use max_new_tokens={room} or less" if room >= 1 else "shorten it"
    raise UserError(f"{which}: its {prompt} tokens and max_new_tokens={new} exceed the context of {context}; {advice}")


def check_unicode(text: str, where: str) -> None:
    """Raise UserError for half a surrogate pair: JSON and the command line can have one, no tokenizer takes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: no valid Unicode text (character {error.start})") from error


def read_prompt_file(name: str, option: str = "prompt_file") -> list[str]:
    """A text file is one prompt; ``.jsonl`` has one per line. ``-`` is standard input, read as text; a name of
    :data:`SHIPPED` is that file.

    Raises UserError, naming ``option``, for what cannot be read.
    """
    if name == STDIN:
        return [_stdin_text()]
    if not name:
        raise UserError(f"{option}: it names no file")
    path = SHIPPED.get(name) or expanded(name, option)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{option}: {name} does not exist{_nearest_shipped(name)}") from None
    except OSError as error:
        raise UserError(f"{option}: {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{option}: {name} is no UTF-8 text (byte {error.start})") from error
    if path.suffix.lower() != ".jsonl":
        return [text.rstrip("\n")]
    prompts = [
        _from_line(line, f"{option}: {name} line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not prompts:
        raise UserError(f"{option}: {name} has no lines")
    return prompts


def _nearest_shipped(name: str) -> str:
    """``", did you mean 'x'?"`` where ``name`` looks like one of the prompts that come with spec-sdk."""
    stem = Path(name).stem
    return did_you_mean(stem, SHIPPED) if difflib.get_close_matches(stem, SHIPPED, n=1) else ""


def _from_line(line: str, where: str) -> str:
    """One prompt of a JSON line: ``prompt``, or the first of Spec-Bench's ``turns``."""
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON that can be read: {error}") from error
    if not isinstance(record, Mapping):
        raise UserError(f"{where}: not an object with 'prompt' or 'turns'")
    turns = record.get("turns")
    prompt = record.get("prompt")
    if prompt is None and isinstance(turns, list) and turns:
        prompt = turns[0]
    if not isinstance(prompt, str):
        raise UserError(f"{where}: has neither a text 'prompt' nor a non-empty list of texts 'turns'")
    if not prompt.strip():
        raise UserError(f"{where}: its prompt is empty")
    return prompt


def encode(tokenizer: Tokenizer, text: str, chat: bool | None) -> list[int]:
    """The token ids of a prompt; ``chat`` None applies the chat template if there is one.

    Raises UserError for ``chat`` without a template.
    """
    if chat and not tokenizer.has_chat_template:
        raise UserError("chat: this model has no chat template; use chat=false")
    if chat or (chat is None and tokenizer.has_chat_template):
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


@functools.cache
def _stdin_text() -> str:
    """All of standard input, read once: every job of a sweep gets the same."""
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"prompt: standard input is no UTF-8 text (byte {error.start})") from error


@functools.cache
def _piped_text() -> str | None:
    """What was piped or redirected into standard input; None if nothing was.

    A pipe that has nothing in it yet is not waited for: it may be an open one that nobody ever writes to.
    """
    kind = _kind(sys.stdin)
    if kind == "file":
        return _stdin_text()
    if kind == "pipe":
        if not select.select([sys.stdin], [], [], 0)[0]:
            print("standard input is a pipe with nothing in it yet: not waiting (prompt=- does)", file=sys.stderr)
            return None
        # a pipe that was closed unwritten is how many programs start us
        return _stdin_text() or None
    return None


def _kind(stream: TextIO | None) -> str:
    try:
        mode = os.fstat(stream.fileno()).st_mode if stream is not None else 0
    except (OSError, ValueError):  # closed, or replaced by something without a descriptor
        return "none"
    return "file" if stat.S_ISREG(mode) else "pipe" if stat.S_ISFIFO(mode) else "none"
