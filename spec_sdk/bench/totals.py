"""What is computed of several answers together. None: they do not tell enough."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.bench.records import AnswerRecord, BatchRecord
from spec_sdk.metrics import ratio


def tokens_per_second(answers: Sequence[AnswerRecord | BatchRecord]) -> float | None:
    """New tokens of all answers, or batches, by their seconds, prefill included."""
    return ratio(sum(answer.new_tokens for answer in answers), sum(answer.seconds for answer in answers))


def decode_tokens_per_second(answers: Sequence[AnswerRecord]) -> float | None:
    """Without prefill: where a candidate does not tell decode time, of the tokens after the first ones."""
    if all(answer.decode_s is not None for answer in answers):
        return ratio(sum(a.new_tokens for a in answers), sum(a.decode_s or 0.0 for a in answers))
    later = [a for a in answers if a.first_token_s is not None and a.first_tokens is not None]
    tokens = sum(a.new_tokens - (a.first_tokens or 0) for a in later)
    return ratio(tokens, sum(a.seconds - (a.first_token_s or 0.0) for a in later)) if tokens else None


def mean_accepted_tokens(answers: Sequence[AnswerRecord]) -> float | None:
    """MAT: new tokens per cycle, of the answers that count their cycles."""
    counted = [answer for answer in answers if answer.steps is not None]
    return ratio(sum(answer.new_tokens for answer in counted), sum(answer.steps or 0 for answer in counted))


def acceptance_rate(answers: Sequence[AnswerRecord]) -> float | None:
    """Accepted by drafted tokens."""
    return ratio(sum(a.accepted or 0 for a in answers), sum(a.drafted or 0 for a in answers))


def summed_depths(answers: Sequence[AnswerRecord]) -> list[tuple[int, int]]:
    """The ``depths`` of all answers together."""
    known = [answer.depths for answer in answers if answer.depths is not None]
    deepest = max(map(len, known), default=0)
    at = [[depths[d] for depths in known if d < len(depths)] for d in range(deepest)]
    return [(sum(drafted for drafted, _ in pairs), sum(accepted for _, accepted in pairs)) for pairs in at]
