"""The texts of a datastore, from files of several kinds, piece by piece: files may be larger than memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.files import read_text
from spec_sdk.prompt_lines import check_unicode, has_json_lines
from spec_sdk.run_output import METRICS

PIECE = 1 << 20
"""Characters that are tokenised at a time, up to the end of a line."""

Document = Iterable[str]
"""A text in pieces."""


def documents(path: Path, option: str) -> Iterator[Document]:
    """The texts of a file, none of them empty.

    A ``.jsonl`` (``.ndjson``) file has one per line: ``text``, or those of the assistant in ``messages``, one after the
    other. A run's ``metrics.json`` has its answers. Any other file is one text. Raises UserError, naming ``option``,
    for a file that cannot be read or has no such lines.
    """
    with _told(path, option):
        if path.name == METRICS:
            yield from _answers(path, option)
        elif has_json_lines(path):
            yield from _lines(path, option)
        else:
            yield _pieces(path, option)


@contextlib.contextmanager
def _told(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{option}: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{option}: {path} is no UTF-8 text") from error


def _pieces(path: Path, option: str) -> Iterator[str]:
    with _told(path, option), path.open(encoding="utf-8-sig") as file:
        while lines := file.readlines(PIECE):
            yield "".join(lines)


def _lines(path: Path, option: str) -> Iterator[Document]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{option}: {path}, line {number}"
            try:
                record: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON that can be read: {error}") from error
            text = _text(record)
            if text is None:
                raise UserError(f"{where}: has neither a 'text' nor a list of 'messages'")
            check_unicode(text, where)
            if text:
                yield [text]


def _text(record: Any) -> str | None:
    if not isinstance(record, Mapping):
        return None
    if isinstance(text := record.get("text"), str):
        return text
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return None
    answers = [message.get("content") for message in messages if message.get("role") == "assistant"]
    return "\n\n".join(answers) if all(isinstance(answer, str) for answer in answers) else None


def _answers(path: Path, option: str) -> Iterator[Document]:
    try:
        prompts = json.loads(read_text(path, f"{option}: {path}"))["prompts"]
        answers = [prompt["text"] for prompt in prompts]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise UserError(f"{option}: {path} is no {METRICS} of a run") from error
    for answer in answers:
        if not isinstance(answer, str):
            raise UserError(f"{option}: {path} is no {METRICS} of a run")
        if answer:
            yield [answer]
