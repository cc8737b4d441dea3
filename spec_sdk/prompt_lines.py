"""One prompt of a JSON line: ``prompt``, the ``messages`` of a chat, or Spec-Bench's ``turns``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_sdk.errors import UserError, did_you_mean

ROLES = ("system", "user", "assistant")
IDS = ("question_id", "id")
PROMPT_KEYS = ("prompt", "messages", "turns")
JSON_LINES = (".jsonl", ".ndjson")
"""How the names of files end that have a JSON object in each line."""

Message = dict[str, str]


def has_json_lines(name: str | Path) -> bool:
    """Whether a file's name says that each of its lines is JSON."""
    return Path(name).suffix.lower() in JSON_LINES


def parsed_line(line: str, number: int, where: str) -> tuple[int | str, str | tuple[Message, ...]]:
    """A line's id, ``number`` if it has none, and what it asks: a text, or the messages of a chat.

    Of several the first is taken: ``prompt``, ``messages``, the first of ``turns``. Raises UserError, beginning with
    ``where``, for a line that asks nothing or is shaped otherwise.
    """
    record = _record(line, where)
    return _id(record, number, where), _content(record, where)


def repeated_id(found: int | str, number: int) -> str:
    """What is wrong with line ``number`` where a line before it has its id: answers are told apart by them."""
    its_own = "; a line without an id has its number" if found in (number, str(number)) else ""
    return f"there is a prompt {found!r} already{its_own}"


def check_unicode(text: str, where: str) -> None:
    """Raise UserError for half a surrogate pair: JSON and the command line can have one, no tokenizer takes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: no valid Unicode text (character {error.start})") from error


def _record(line: str, where: str) -> Mapping[str, Any]:
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON that can be read: {error}") from error
    if not isinstance(record, Mapping):
        raise UserError(f"{where}: not an object with 'prompt', 'messages' or 'turns'")
    return record


def _id(record: Mapping[str, Any], number: int, where: str) -> int | str:
    found: Any = next((record[key] for key in IDS if record.get(key) is not None), number)
    if isinstance(found, bool) or not isinstance(found, int | str):
        key = next(key for key in IDS if record.get(key) is not None)
        raise UserError(f"{where}: its '{key}' {found!r} is neither a text nor a whole number")
    if isinstance(found, str):
        check_unicode(found, where)
    return found


def _misspelt(record: Mapping[str, Any]) -> str:
    """What is said of a key that may be meant for one that holds prompts; nothing where there is none like them."""
    for key in record:
        near = difflib.get_close_matches(str(key), PROMPT_KEYS, n=1)
        if near and near[0] != key:
            return f"; did you mean '{near[0]}' by {str(key)!r}?"
    return ""


def _content(record: Mapping[str, Any], where: str) -> str | tuple[Message, ...]:
    prompt, messages, turns = (record.get(key) for key in PROMPT_KEYS)
    if prompt is None and messages is not None:
        return _messages(messages, where)
    if prompt is None and isinstance(turns, list) and turns:
        prompt = turns[0]
    if not isinstance(prompt, str):
        raise UserError(
            f"{where}: has neither a text 'prompt' nor a list of 'messages' nor a non-empty list of texts 'turns'"
            f"{_misspelt(record)}"
        )
    if not prompt.strip():
        raise UserError(f"{where}: its prompt is empty")
    check_unicode(prompt, where)
    return prompt


def _messages(given: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise UserError(f"{where}: its 'messages' are no list of messages, such as {{'role': 'user', 'content': …}}")
    messages = tuple(_message(message, f"{where}: message {i}") for i, message in enumerate(given, start=1))
    if messages[-1]["role"] != "user":
        raise UserError(f"{where}: the last message must be the user's, and is the {messages[-1]['role']}'s")
    return messages


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise UserError(f"{where} is no object with 'role' and 'content'")
    role, content = given.get("role"), given.get("content")
    if role not in ROLES:
        hint = did_you_mean(role if isinstance(role, str) else "", ROLES)
        raise UserError(f"{where} has an unknown role {role!r}{hint}")
    if not isinstance(content, str):
        raise UserError(f"{where} has no text 'content'")
    if not content.strip():
        raise UserError(f"{where} is empty")
    check_unicode(content, where)
    return {"role": role, "content": content}
