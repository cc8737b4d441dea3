"""Prompts of a script that measures, and their answers with all events: what figures need that records do not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_sdk.bench.conversations import read_conversations, spread
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline
from spec_sdk.prompts import encode

LONG_TASKS = ("rag", "summarization")
"""Those of Spec-Bench whose prompts bring a text along."""


@dataclass(frozen=True)
class Prompt:
    """The first turn of a conversation, and the task it belongs to."""

    text: str
    task: str


def spread_prompts(path: Path, count: int, longest: int | None = None) -> list[Prompt]:
    """``count`` prompts evenly spread over the file (which is sorted by task), of at most ``longest`` characters.

    Raises UserError for a file that cannot be read.
    """
    every = [Prompt(each.turns[0], each.task) for each in read_conversations(str(path)).conversations if each.turns]
    return spread([prompt for prompt in every if longest is None or len(prompt.text) <= longest], count)


def long_prompts(pipeline: Pipeline, path: Path, shortest: int, longest: int) -> list[Prompt]:
    """Those of the file's prompts that bring a text along and have ``shortest`` to ``longest`` tokens.

    Raises UserError if there is none, and for a file that cannot be read.
    """
    every = [prompt for prompt in spread_prompts(path, 10**6) if prompt.task in LONG_TASKS]
    long = [prompt for prompt in every if shortest <= len(tokens_of(pipeline, prompt)) <= longest]
    if not long:
        raise UserError(f"{path}: it has no prompt of {shortest} to {longest} tokens in {', '.join(LONG_TASKS)}")
    return long


def tokens_of(pipeline: Pipeline, prompt: Prompt) -> list[int]:
    """The prompt's tokens: as a chat, where the model has a chat template."""
    return encode(pipeline.tokenizer, prompt.text, chat=None)


@dataclass(frozen=True)
class Answer:
    """One prompt's new tokens, and the events of making them."""

    prompt: Prompt
    tokens: list[int]
    events: list[dict[str, Any]]


def answer(pipeline: Pipeline, prompts: Sequence[Prompt], new_tokens: int, first_id: int = 0) -> list[Answer]:
    """Answer every prompt up to the model's end token: as a chat, where the model has a chat template.

    ``first_id``: of the first prompt; a request's id says which random numbers it draws.
    """
    answers = []
    for i, prompt in enumerate(prompts, start=first_id):
        events: list[dict[str, Any]] = []
        stream = pipeline.stream(
            tokens_of(pipeline, prompt), request_id=i, max_new_tokens=new_tokens, emit=events.append
        )
        answers.append(Answer(prompt, [token for step in stream for token in step], events))
    return answers


def events_of(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """All their events, in order: what ``spec_sdk.metrics.summarise`` takes."""
    return [event for answer in answers for event in answer.events]
