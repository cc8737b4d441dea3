"""What an engine gives back: an answer, and the parts of it as they come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spec_sdk.api.step import Step
from spec_sdk.engine.token_logprobs import TokenLogprob


@dataclass(frozen=True)
class Answer:
    """One answer to one prompt.

    ``tokens``: all new token ids, the one that ended it included. ``text``: their text, up to the stop string if one
    ended it. ``finish_reason``: ``stop`` (the model's end token, a stop token or a stop string), ``length``
    (``max_new_tokens``), ``interrupted`` (cancelled) or ``error``. ``metrics``: what metrics.json has of a prompt, and
    ``guarantee``; empty if the request was refused. ``sample``: which of the prompt's ``n`` answers it is, from 0.
    ``error``: why it ended with ``error``; other answers of the same call are not touched by it. ``logprobs``: those of
    all tokens, and ``steps`` what every step did, if the request asked for them; and so ``prompt_logprobs``, those of
    the prompt's tokens but the first, which follows nothing.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    metrics: dict[str, Any] = field(default_factory=dict)
    sample: int = 0
    error: Exception | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """What a step added to an answer.

    ``text`` and ``tokens`` are new; text lags behind tokens where a character or a stop string may be incomplete.
    ``request``: what :meth:`spec_sdk.Engine.add` returned. ``answer``: the whole answer, on its last part only.
    ``logprobs``: of ``tokens``, and ``steps`` that gave them, if the request asked for them; and so
    ``prompt_logprobs``, on the first part only.
    """

    request: int
    text: str
    tokens: list[int]
    sample: int = 0
    answer: Answer | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def finish_reason(self) -> str | None:
        """How the answer ended; None while it goes on."""
        return None if self.answer is None else self.answer.finish_reason
