"""Asking a pipeline for the needles, and what it makes of the right answers.

Prefill is always plain: what a pipeline speculates on is what comes after the question. So the right answer is scored
as an answer is decoded, one token per pass, through the pipeline's own target runner.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.metrics import ratio
from spec_sdk.model.session import Session
from spec_sdk.needles.drawing import Kind
from spec_sdk.needles.haystack import Haystack, Question
from spec_sdk.needles.scoring import holds
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

MAX_NEW_TOKENS = 48
"""Enough for a hash and a few words before it."""


@dataclass(frozen=True)
class Hits:
    """Predictions of attention, and how many of them were accepted."""

    accepted: int = 0
    predicted: int = 0

    @staticmethod
    def of(flags: Iterable[Sequence[bool | None]]) -> Hits:
        """From every pass's ``hit``, where None is a layer that predicted nothing."""
        made = [flag for layers in flags for flag in layers if flag is not None]
        return Hits(sum(made), len(made))

    def __add__(self, other: Hits) -> Hits:
        return Hits(self.accepted + other.accepted, self.predicted + other.predicted)

    @property
    def rate(self) -> float | None:
        """None if nothing was predicted."""
        return ratio(self.accepted, self.predicted)


@dataclass(frozen=True)
class Answer:
    """What came of one question.

    ``text``: the pipeline's answer. ``found``: whether it holds the right one. ``nll``: the negative log-likelihood of
    the right answer, in nats, all its tokens together. ``answering`` and ``scoring``: the predictions of attention made
    for the pipeline's own answer, and for the right one.
    """

    question: Question
    text: str
    found: bool
    nll: float
    answering: Hits = field(default_factory=Hits)
    scoring: Hits = field(default_factory=Hits)

    @property
    def nll_per_token(self) -> float:
        return self.nll / len(self.question.answer)

    def as_json(self) -> dict[str, Any]:
        """A record of plain data."""
        question, needle = self.question, self.question.needle
        return {
            **asdict(needle),
            "place_tokens": question.place,
            "place_share": question.share,
            "prompt_tokens": len(question.prompt),
            "text": self.text,
            "found": self.found,
            "answer_tokens": len(question.answer),
            "nll": self.nll,
            "nll_per_token": self.nll_per_token,
            "hit_rate_answering": self.answering.rate,
            "hit_rate_scoring": self.scoring.rate,
        }


@dataclass(frozen=True)
class NeedleScore:
    """The answers to some questions. All figures are computed from them; None stands for a figure of no answer."""

    answers: tuple[Answer, ...]

    def __add__(self, other: NeedleScore) -> NeedleScore:
        return NeedleScore((*self.answers, *other.answers))

    def of(self, kind: Kind) -> NeedleScore:
        """The answers about hashes, or about facts, alone."""
        return NeedleScore(tuple(answer for answer in self.answers if answer.question.needle.kind == kind))

    @property
    def asked(self) -> int:
        return len(self.answers)

    @property
    def found(self) -> int:
        return sum(answer.found for answer in self.answers)

    @property
    def nll(self) -> float | None:
        """Nats of a right answer, the mean over the questions."""
        return ratio(sum(answer.nll for answer in self.answers), self.asked)

    @property
    def nll_per_token(self) -> float | None:
        """Nats of a right answer's token, the mean over all tokens of all right answers."""
        tokens = sum(len(answer.question.answer) for answer in self.answers)
        return ratio(sum(answer.nll for answer in self.answers), tokens)

    @property
    def answering(self) -> Hits:
        """Predictions of attention while the pipeline answered."""
        return sum((answer.answering for answer in self.answers), Hits())

    @property
    def scoring(self) -> Hits:
        """Predictions of attention while the right answers were scored."""
        return sum((answer.scoring for answer in self.answers), Hits())

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data, of all answers and of each kind."""
        parts = {"all": self, "hash": self.of("hash"), "fact": self.of("fact")}
        return {name: part._figures() for name, part in parts.items()}

    def _figures(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "found": self.found,
            "nll": self.nll,
            "nll_per_token": self.nll_per_token,
            "hit_rate_answering": self.answering.rate,
            "hit_rate_scoring": self.scoring.rate,
        }


def measure(
    pipeline: Pipeline,
    haystack: Haystack,
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    tell: Callable[[Answer], None] = lambda answer: None,
) -> NeedleScore:
    """Ask ``pipeline`` every question of ``haystack``, greedily, and score the right answers.

    Every question is a request of its own, answered as ``task=generate`` answers; the text before it is prefilled once
    for all, into the cache slot that they have one after the other. ``tell`` is called with each answer. Raises
    UserError if the pipeline does not answer greedily, runs on several processes, or has no room for the prompts and
    ``max_new_tokens``, or the right answers have more tokens.
    """
    check_fit(pipeline, haystack, max_new_tokens)
    # its caches last no longer than this text
    engine = pipeline.new_engine()
    answers = []
    for number, question in enumerate(haystack.questions):
        answer = _ask(pipeline, engine, question, number, max_new_tokens)
        tell(answer)
        answers.append(answer)
    return NeedleScore(tuple(answers))


def check_fit(pipeline: Pipeline, haystack: Haystack, max_new_tokens: int) -> None:
    """Raise UserError for what :func:`measure` would refuse, before anything is prefilled."""
    if pipeline.ranks.size > 1:
        raise UserError("the needle test runs in one process; start it without a launcher")
    if pipeline.sampling.temperature:
        raise UserError(
            f"sampling.temperature: {pipeline.sampling.temperature} must be 0: the needle test's answers are greedy"
        )
    longest = max(len(question.lead) + len(question.answer) for question in haystack.questions)
    if max_new_tokens < longest:
        raise UserError(f"task.max_new_tokens: {max_new_tokens} is too short for a right answer; use {longest} or more")
    check_room(pipeline, f"a prompt of {haystack.tokens} tokens", haystack.tokens, max_new_tokens)


def check_room(pipeline: Pipeline, prompt: str, tokens: int, max_new_tokens: int) -> None:
    """Raise UserError if a prompt of so many tokens, told as ``prompt``, and its answer do not fit the model."""
    room = pipeline.context - max_new_tokens
    context = f"{pipeline.target_name}'s context of {pipeline.context}"
    if room < 1:
        raise UserError(f"task.max_new_tokens: {max_new_tokens} leaves no room for a prompt in {context}")
    if tokens > room:
        raise UserError(
            f"task.context: {prompt} and task.max_new_tokens={max_new_tokens} exceed {context}; "
            f"use task.context={room} or less"
        )


def _ask(pipeline: Pipeline, engine: TokenEngine, question: Question, number: int, max_new_tokens: int) -> Answer:
    events: list[dict[str, Any]] = []
    request = TokenRequest(question.prompt, max_new_tokens, request_id=number, emit=events.append)
    text = pipeline.tokenizer.decode([token for tokens in engine.stream(request) for token in tokens])
    reports = [event["attention"] for event in events if event["event"] == "cycle"]
    nll, scoring = score_answer(engine.target, question.prompt, question.lead, question.answer)
    return Answer(
        question,
        text,
        holds(text, question.needle.answer),
        nll,
        Hits.of(report["hit"] for report in reports if report is not None),
        scoring,
    )


def score_answer(
    session: Session, prompt: Sequence[int], lead: Sequence[int], answer: Sequence[int]
) -> tuple[float, Hits]:
    """The negative log-likelihood of ``answer`` after ``prompt`` and ``lead``, in nats, and the predictions made.

    The prompt but its last token is prefilled, as far as slot 0 does not hold it; every pass then feeds one token
    through the session's runner, and gives the likelihood of the next. No temperature, penalty or filter is applied.
    """
    # opening the slot anew also forgets what a predictor learned from another continuation
    kept = session.open(0, prompt[:-1])
    session.prefill(0, prompt[kept:-1])
    nll, flags = 0.0, []
    right = [*lead, *answer]
    for i, fed in enumerate((prompt[-1], *right[:-1])):
        (scores,) = session.score([0], [TokenTree.root_only(fed)])
        if i >= len(lead):
            nll -= float(torch.log_softmax(scores.logits_NV[0].double(), dim=-1)[right[i]])
        if scores.attention is not None:
            flags.append(scores.attention.hit)
        session.commit([0], [[0]])
    return nll, Hits.of(flags)
