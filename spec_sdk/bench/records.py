"""The records of a benchmark: one JSON object a line in ``bench.jsonl``, from which every figure is computed.

Kinds, by ``record``: ``run`` (first; again when a run goes on), ``candidate``, ``warm_up``, ``answer``, ``batch``,
``check``, ``failure``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from spec_sdk.bench.candidate import Facts, Measured

SCHEMA_VERSION = 1
FILE = "bench.jsonl"
VANILLA = "vanilla"
"""The candidate that all are compared with."""

Record = dict[str, Any]
FailureReason = Literal["not_started", "refused", "too_long", "error"]


@dataclass(frozen=True)
class _Line:
    """A record with a type of its own. ``RECORD``: its kind."""

    RECORD: ClassVar[str]

    def as_record(self) -> Record:
        """As a line has it: what it is of, then what was measured."""
        values = dataclasses.asdict(self)
        own = {name: values[name] for name in type(self).__annotations__ if name in values}
        return {"record": self.RECORD, **own, **values}


@dataclass(frozen=True, order=True)
class Setting:
    """How prompts are asked: under what, and how many at once."""

    temperature: float
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class CandidateRecord(Facts, _Line):
    """A candidate that started: all that :class:`Facts` has, and the seconds that it took, where that was measured."""

    RECORD = "candidate"
    candidate: str
    kind: Literal["pipeline", "peer"]
    load_s: float | None = None

    @property
    def name(self) -> str:
        return self.candidate


@dataclass(frozen=True, kw_only=True)
class AnswerRecord(Measured, _Line):
    """An answer: who gave it to what, and all that :class:`Measured` has."""

    RECORD = "answer"
    candidate: str
    temperature: float
    batch_size: int
    round: int
    prompt: str
    task: str
    turn: int
    seed: int
    prompt_tokens: int
    new_tokens: int

    @property
    def setting(self) -> Setting:
        return Setting(self.temperature, self.batch_size)

    @property
    def question(self) -> tuple[float, int, int, str, int]:
        """What was asked: the same of two candidates' answers that may be compared."""
        return self.temperature, self.batch_size, self.round, self.prompt, self.turn


@dataclass(frozen=True, kw_only=True)
class BatchRecord(_Line):
    """Prompts that were answered together; their answers have records too. ``first``: number of the first one.

    ``seconds``: from the first request to the last token of all.
    """

    RECORD = "batch"
    candidate: str
    temperature: float
    batch_size: int
    round: int
    first: int
    prompts: Sequence[str]
    seconds: float
    new_tokens: int
    first_token_s: Sequence[float | None]

    @property
    def setting(self) -> Setting:
        return Setting(self.temperature, self.batch_size)


@dataclass(frozen=True, kw_only=True)
class CheckRecord(_Line):
    """A greedy answer beside plain decoding's of the same prompt.

    ``first_difference``: the first token that differs, from 0. ``tie``: the two tokens' logits there, ``gap`` apart,
    are no further apart than rounding allows (``allowed``); None where they could not be looked at.
    """

    RECORD = "check"
    candidate: str
    prompt: str
    turn: int
    batch_size: int
    round: int
    equal: bool
    first_difference: int | None = None
    tie: bool | None = None
    gap: float | None = None
    allowed: float | None = None


@dataclass(frozen=True, kw_only=True)
class FailureRecord(_Line):
    """What a candidate did not answer, and why, in one line. None: of all temperatures, batch sizes or prompts.

    ``reason``: it could not be started; it cannot answer under this setting; prompt and answer exceed the context; or
    something went wrong.
    """

    RECORD = "failure"
    candidate: str
    reason: FailureReason
    error: str
    temperature: float | None = None
    batch_size: int | None = None
    round: int | None = None
    prompt: str | None = None
    turn: int | None = None
