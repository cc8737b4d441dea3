"""What was read in an answer, in OpenAI's shapes."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from spec_sdk.api.answer import Answer
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.serve.reading.answer_format import AnswerFormat
from spec_sdk.serve.reading.pieces import Call, Content, Piece, Thought

ID_LENGTH = 9
"""Of calls: Mistral's templates take no other, and only letters and digits."""


def message_of(pieces: Iterable[Piece]) -> tuple[dict[str, Any], int]:
    """An answer's message, and how many whole calls it has. Without calls ``content`` is a text, if an empty one."""
    joined = list(pieces)
    content = _text(joined, Content)
    calls = [one for one in joined if isinstance(one, Call)]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if thoughts := _text(joined, Thought):
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [_call(one) for one in calls]
    return message, whole_of(calls)


def whole_of(pieces: Iterable[Piece]) -> int:
    """How many calls were not cut off."""
    return sum(isinstance(piece, Call) and piece.whole for piece in pieces)


def deltas_of(pieces: Sequence[Piece], calls: int) -> list[dict[str, Any]]:
    """The deltas of a stream that give these pieces; ``calls``: how many it had before. A call comes whole."""
    deltas: list[dict[str, Any]] = []
    for kind, group in groupby(pieces, type):
        if kind is Call:
            for piece in group:
                assert isinstance(piece, Call)
                deltas.append({"tool_calls": [{"index": calls, **_call(piece)}]})
                calls += 1
        else:
            deltas.append({"content" if kind is Content else "reasoning_content": _text(group, kind)})
    return deltas


def reason_of(reason: str, calls: int) -> str:
    """How an answer with so many whole calls ended, as clients are told."""
    return "tool_calls" if calls and reason == "stop" else reason


def thought_tokens(answer: Answer, format: AnswerFormat, tokenizer: Tokenizer) -> int:
    """How many of an answer's tokens are thoughts, without the marks around them."""
    kept = tokenizer.special_ids(format.marks)
    reader, stream, count = format.reader(tokenizer.decode(answer.tokens, kept=kept)), tokenizer.stream(kept), 0
    for token in answer.tokens:
        before = reader.thinking
        reader.push(stream.push([token]))
        count += before and reader.thinking
    return count


def _text(pieces: Iterable[Piece], kind: type[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind) and not isinstance(piece, Call))


def _call(call: Call) -> dict[str, Any]:
    name = "".join(random.SystemRandom().choices(string.ascii_letters + string.digits, k=ID_LENGTH))
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
