"""Prompts that are sent back before their answers, as ``echo`` asks, and answers of no token."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from spec_sdk.api.answer import Answer, Part


@dataclass(frozen=True)
class Echo:
    """A prompt as it is sent back: as it came, or the text of its ``tokens``."""

    text: str
    tokens: list[int]


def without_tokens(part: Part) -> Part:
    """A part of an answer of one token, as one of none: the engine answers nothing with fewer."""
    answer = None if part.answer is None else _without_tokens(part.answer)
    return dataclasses.replace(part, text="", tokens=[], logprobs=[], steps=[], answer=answer)


def _without_tokens(answer: Answer) -> Answer:
    # a pass whose token is dropped would count as one that accepted nothing
    metrics = {**answer.metrics, "new_tokens": 0, "steps": 0}
    reason = "length" if answer.finish_reason == "stop" else answer.finish_reason
    return dataclasses.replace(answer, text="", tokens=[], logprobs=[], steps=[], finish_reason=reason, metrics=metrics)
