"""The prompts of a benchmark: conversations of one turn or several, each of a task (Spec-Bench)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from spec_sdk.errors import UserError
from spec_sdk.files import expanded, read_text
from spec_sdk.prompt_lines import check_unicode, has_json_lines, parsed_line, repeated_id
from spec_sdk.prompts import SHIPPED, SPEC_BENCH_SAMPLE, STDIN, check_text, encode, encode_messages, read_prompt_file
from spec_sdk.standard_input import whole_text

if TYPE_CHECKING:
    from spec_sdk.model.tokenizer import Tokenizer

MT_BENCH = "mt_bench"
MT_BENCH_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Spec-Bench's file names these instead of their task, multi-turn conversation."""
TASK_NAMES = {
    MT_BENCH: "multi-turn conversation",
    "translation": "translation",
    "summarization": "summarization",
    "qa": "question answering",
    "math_reasoning": "mathematical reasoning",
    "rag": "retrieval-augmented generation",
}
"""Spec-Bench's six tasks as its paper calls them (Xia et al. 2024, Table 3)."""
NO_TASK = "prompts"

T = TypeVar("T")
Message = Mapping[str, str]


@dataclass(frozen=True)
class Conversation:
    """What is asked, turn by turn: a turn is answered before the next one is asked, as one chat.

    ``opening``: messages of a chat before the first turn, which it ends with where ``turns`` is empty. ``reference``: a
    text to hold the answer against.
    """

    id: str
    task: str
    turns: tuple[str, ...]
    opening: tuple[Message, ...] = ()
    reference: str | None = None

    @property
    def length(self) -> int:
        """Answers that it takes."""
        return len(self.turns) or 1

    @property
    def characters(self) -> int:
        """Of all that is asked."""
        return sum(map(len, self.turns)) + sum(len(message["content"]) for message in self.opening)

    def tokens(self, tokenizer: Tokenizer, chat: bool | None, answers: Sequence[str]) -> list[int]:
        """The prompt of the turn that comes after ``answers``, as ``chat`` says (:func:`spec_sdk.prompts.encode`).

        Without a chat template the answer and the next turn stand below what was asked, an empty line between them.
        Raises UserError.
        """
        if self.opening:
            return encode_messages(tokenizer, self.opening, chat)
        asked = self.turns[: len(answers) + 1]
        if not answers:
            return encode(tokenizer, asked[0], chat)
        if chat or (chat is None and tokenizer.has_chat_template):
            return encode_messages(tokenizer, _messages(asked, answers), chat)
        parts = [text for pair in zip(asked, answers, strict=False) for text in pair]
        return tokenizer.encode("\n\n".join([*parts, asked[-1]]))


@dataclass(frozen=True)
class PromptSet:
    """Conversations, and where they are from. ``sha256``: of all that is asked."""

    file: str
    conversations: tuple[Conversation, ...]

    @property
    def sha256(self) -> str:
        said = [[c.id, c.task, c.turns, [dict(message) for message in c.opening]] for c in self.conversations]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def read_conversations(file: str | None, prompt: str | None = None, count: int | None = None) -> PromptSet:
    """The conversations of a file (JSONL, a text, or the name of one that comes with spec-sdk), at most ``count`` of
    them, evenly spread; or the one that ``prompt`` is. Without both Spec-Bench's sample.

    Of a line count ``turns``, all of them, or what :func:`parsed_line` finds; ``task``, or Spec-Bench's ``category``;
    ``reference``, where it is a text.
    Raises UserError for what cannot be read.
    """
    if prompt is not None:
        text = whole_text() if prompt == STDIN else prompt
        check_text(text, "prompt: standard input" if prompt == STDIN else "prompt: it")
        return PromptSet("prompt", (Conversation("1", NO_TASK, (text,)),))
    name = file or SPEC_BENCH_SAMPLE
    path = Path(name) if name == STDIN else SHIPPED.get(name) or expanded(name, "prompt_file")
    if not has_json_lines(path) or not path.exists():
        [only] = read_prompt_file(name)
        check_text(only.text, f"prompt_file: {name}")
        return PromptSet(name, (Conversation("1", NO_TASK, (only.text,)),))
    found = _of_lines(read_text(path, f"prompt_file: {name}"), f"prompt_file: {name}")
    return PromptSet(name, tuple(spread(found, len(found) if count is None else count)))


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most ``count`` of ``items``, evenly spread."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def task_of(task: str | None, category: str | None) -> str:
    """Spec-Bench's task of a line with these fields; another ``task`` as it is."""
    named = task or category or NO_TASK
    return MT_BENCH if named in MT_BENCH_CATEGORIES else named


def task_name(task: str) -> str:
    """A task for people to read."""
    return TASK_NAMES.get(task, task)


def _of_lines(text: str, where: str) -> list[Conversation]:
    found: dict[str, Conversation] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            conversation = _of_line(line, number, f"{where} line {number}")
            if conversation.id in found:
                raise UserError(f"{where} line {number}: {repeated_id(conversation.id, number)}")
            found[conversation.id] = conversation
    if not found:
        raise UserError(f"{where} has no lines")
    return list(found.values())


def _of_line(line: str, number: int, where: str) -> Conversation:
    name, content = parsed_line(line, number, where)
    record: Mapping[str, Any] = json.loads(line)
    task, category = (_text_or_none(record.get(key), f"{where}: its '{key}'") for key in ("task", "category"))
    of, given = task_of(task, category), record.get("reference")
    reference = given if isinstance(given, str) and given.strip() else None
    if not isinstance(content, str):
        return Conversation(str(name), of, (), content, reference)
    if record.get("prompt") is not None:
        return Conversation(str(name), of, (content,), (), reference)
    return Conversation(str(name), of, (content, *_later_turns(record["turns"][1:], where)), (), reference)


def _later_turns(turns: Sequence[Any], where: str) -> list[str]:
    for number, turn in enumerate(turns, start=2):
        if not isinstance(turn, str) or not turn.strip():
            raise UserError(f"{where}: turn {number} is no text")
        check_unicode(turn, where)
    return list(turns)


def _text_or_none(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where} {value!r} is no text")
    return value


def _messages(asked: Sequence[str], answers: Sequence[str]) -> list[Message]:
    messages: list[Message] = []
    for turn, text in enumerate(asked):
        messages.append({"role": "user", "content": text})
        if turn < len(answers):
            messages.append({"role": "assistant", "content": answers[turn]})
    return messages
