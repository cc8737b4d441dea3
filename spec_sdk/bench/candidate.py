"""What a benchmark compares: anything that answers prompts of token ids, and what is measured of an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from spec_sdk.bench.cycle_counts import AttentionHits
from spec_sdk.errors import OneLineError
from spec_sdk.guarantees import Guarantee

FinishReason = Literal["stop", "length"]


class CandidateError(OneLineError):
    """Why a candidate cannot be started or did not answer, in one line. The others go on."""


@dataclass(frozen=True)
class Ask:
    """A prompt of token ids and how to answer it.

    ``new_tokens``: of the answer, at most. ``temperature``: 0 is greedy. ``seed``: of the answer's random numbers.
    ``stop_ids``: tokens that end the answer, and are kept; none where it goes on to ``new_tokens`` whatever comes.
    ``top_k``, ``top_p``, ``min_p`` and ``repetition_penalty`` as in :class:`spec_sdk.SamplingParams`.
    """

    tokens: Sequence[int]
    new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Measured:
    """One answer. Times are in seconds; what a candidate cannot tell is None.

    ``tokens``: the new ones, the one that ended the answer included. ``seconds``: from the request to its last token,
    prefill included; ``first_token_s``: until its first tokens were there, ``first_tokens`` of them. ``decode_s`` is
    the sum of ``stage_s`` (draft, verify, recover). ``steps``: target passes after prefill; ``drafted`` and
    ``accepted``: depth of their trees, and tokens kept of them. ``depths[d - 1]``: cycles that drafted at least d
    deep, and those that accepted at least d. ``nodes``: of all trees. ``passes``: nodes of a tree → cycles, and seconds
    of verifying. ``resident_bytes``: the most that was in memory. ``timeline``: its prefill and cycles in order:
    ``end_s`` after the request, the seconds of each stage by name (``prefill``, or draft, verify and recover), and of a
    cycle ``step``, ``drafted``, ``accepted`` and how many ``tokens`` it made. ``verdict_s``: those of verifying that
    came after the target's passes (accepting and drawing), and ``verdict_s2`` the sum of their squares over cycles.
    """

    tokens: list[int]
    finish_reason: FinishReason
    seconds: float
    first_token_s: float | None = None
    first_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    stage_s: Mapping[str, float] | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    depths: Sequence[tuple[int, int]] | None = None
    nodes: int | None = None
    passes: Mapping[int, tuple[int, float]] | None = None
    attention: AttentionHits | None = None
    resident_bytes: int | None = None
    timeline: Sequence[Mapping[str, float]] | None = None
    verdict_s: float | None = None
    verdict_s2: float | None = None


@dataclass(frozen=True)
class Facts:
    """What a ``candidate`` record says, besides name, kind and time to load.

    ``guarantee``: of greedy answers, beside plain decoding of the target; None of a program that promises nothing.
    ``facts``: anything else as JSON, such as a program's version, threads and settings.
    """

    pipeline: str | None = None
    overrides: Sequence[str] = ()
    plugins: Mapping[str, Mapping[str, Any]] | None = None
    guarantee: Guarantee | None = None
    draft: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Candidate(ABC):
    """One contestant of a run, loaded and ready.

    ``name``: what records call it, unique in a run. Between two calls it should take no processor time.
    """

    kind: Literal["pipeline", "peer"] = "peer"

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def facts(self) -> Facts:
        """What it is."""

    def refusal(self, temperature: float, batch_size: int) -> str | None:
        """Why it cannot answer at this temperature, or this many prompts at once; None if it can. One line."""
        return "it answers one prompt at a time" if batch_size > 1 else None

    def begin(self, batch_size: int) -> None:  # noqa: B027
        """A round over all prompts begins, ``batch_size`` at once: forget what was learned of earlier answers."""

    @abstractmethod
    def answer(self, ask: Ask) -> Measured:
        """Answer one prompt. Raises CandidateError, or whatever else goes wrong; the next one is asked all the same."""

    def answer_together(self, asks: Sequence[Ask]) -> list[Measured | Exception]:
        """Answer several prompts at once, ``seconds`` of each from the beginning of the batch; what failed in place of
        its answer. Called with at least two only where :meth:`refusal` allows it.
        """
        return [self.answer(ask) for ask in asks]

    def close(self) -> None:  # noqa: B027
        """Free what it holds. Called once, also after a failure or an interrupt."""


@dataclass(frozen=True)
class Entrant:
    """A candidate that is not loaded yet.

    ``open`` loads it, and raises CandidateError or UserError if it cannot be started: it is then left out, with one
    line and a failure record.
    """

    name: str
    open: Callable[[], Candidate]
    kind: Literal["pipeline", "peer"] = "peer"
