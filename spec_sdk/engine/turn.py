"""A request while it is served, and its part of one step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.contracts.drafter import Hidden
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import Budget, Request, RequestState, Verdict
from spec_sdk.engine.constrained_tree import ConstrainedTree
from spec_sdk.engine.step_trace import StepTrace
from spec_sdk.engine.token_logprobs import TokenLogprob
from spec_sdk.model.block_runner import AttentionReport
from spec_sdk.model.session import Scores
from spec_sdk.ops import PendingDecision, TopTokens
from spec_sdk.tree import TokenTree

Emit = Callable[[dict[str, Any]], None]
"""Takes the events of a request."""


@dataclass(frozen=True)
class Progress:
    """What a step did for one request: its new tokens; how it ended, if it did; and over what, if it failed."""

    request: int
    tokens: list[int]
    finish_reason: str | None = None
    error: Exception | None = None


@dataclass
class Active:
    """A request from when it is added until it ends."""

    state: RequestState
    emit: Emit
    policy: Policy
    prefilled: bool = False
    prefill_s: float = 0.0
    encoder_s: float | None = None
    drafting: bool = False

    @property
    def view(self) -> Request:
        return self.state.view

    @property
    def slot(self) -> int:
        return self.state.slot


@dataclass
class Turn:
    """One request's part of a cycle, filled in stage by stage."""

    active: Active
    budget: Budget
    prefix: int
    tree: TokenTree
    scores: Scores = field(init=False)
    pending: PendingDecision | None = None
    verdict: Verdict = field(init=False)
    attention: AttentionReport | None = None
    top: TopTokens | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    constrained: ConstrainedTree | None = None
    trace: StepTrace | None = None

    @property
    def path(self) -> list[int]:
        """The committed nodes: one for each emitted token."""
        return self.verdict.path[: len(self.tokens)]

    def told_of_constraint(self) -> dict[str, float]:
        """What the request's constraint did to the tree, and the seconds that it took since this was last asked."""
        state = self.active.state
        seconds, state.constraint_s = state.constraint_s, 0.0
        return (self.constrained or ConstrainedTree(self.tree)).event(self.path, seconds)

    @functools.cached_property
    def path_hidden(self) -> Hidden:
        """The tapped states of the committed nodes, the root first: layer → [N, M]."""
        return {layer: h_NM[self.path] for layer, h_NM in self.scores.hidden.items()}
