"""A request while it is served, and its part of one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spec_sdk.contracts.drafter import Hidden
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import Budget, Request, RequestState, Verdict
from spec_sdk.engine.constrained_tree import ConstrainedTree
from spec_sdk.engine.forced_tokens import behind, path_behind
from spec_sdk.engine.step_trace import StepTrace
from spec_sdk.engine.token_logprobs import TokenLogprob
from spec_sdk.level_ranks import LevelRanks
from spec_sdk.model.block_runner import AttentionReport
from spec_sdk.model.session import Scores
from spec_sdk.ops import PendingDecision, TopTokens
from spec_sdk.ops.draws import PART
from spec_sdk.ops.uploads import numbers_on
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


@dataclass(eq=False)
class Active:
    """A request from when it is added until it ends. It equals itself alone: every step looks for some.

    ``kept``: how many of the prompt's first tokens its slot's cache had. ``prompt_logprobs``: of the prompt's tokens
    that were fed, each of the one after it. ``ended``: whether it has left.
    """

    state: RequestState
    emit: Emit
    policy: Policy
    prefilled: bool = False
    prefill_s: float = 0.0
    encoder_s: float | None = None
    kept: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    drafting: bool = False
    ended: bool = False

    @property
    def view(self) -> Request:
        return self.state.view

    @property
    def slot(self) -> int:
        return self.state.slot

    @property
    def asks_for_logits(self) -> bool:
        """Whether it is to be told of the target's own logits at every token."""
        return self.state.trace or self.state.logprobs is not None


@dataclass
class Turn:
    """One request's part of a cycle, filled in stage by stage.

    ``taken``: forced tokens at the end of the request's text that had no K and V before; the last is the tree's root.
    ``above``: the tokens of the pass before that root, the oldest first. ``fed_hidden``: the tapped states of rows that
    were fed before the pass. ``ending``: forced tokens with which the answer ends, which need none. ``start_s``: what
    starting the drafter for the request took, in this cycle.
    """

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
    taken: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)
    fed_hidden: Hidden = field(default_factory=dict)
    ending: list[int] = field(default_factory=list)
    start_s: float = 0.0

    @property
    def path(self) -> list[int]:
        """The committed nodes of the tree: one for each of ``tokens``."""
        return self.verdict.path[: len(self.tokens)]

    @functools.cached_property
    def scored(self) -> TokenTree:
        """What the target's pass is over: the tree, behind the forced tokens that it takes in."""
        return behind(self.above, self.tree)

    @property
    def logits_NV(self) -> torch.Tensor:
        """The target's, of the tree's nodes; a part of what the pass gave."""
        logits_NV = self.scores.logits_NV
        return logits_NV[len(self.above) :] if self.above else logits_NV

    @property
    def scored_verdict(self) -> Verdict:
        """The verdict as one on :attr:`scored`."""
        return Verdict(path_behind(self.above, self.verdict.path), self.verdict.next_token, self.scored)

    @property
    def rows(self) -> list[int]:
        """The committed rows of the pass."""
        return path_behind(self.above, self.path)

    @property
    def emitted(self) -> list[int]:
        """What the answer goes on with: forced tokens that K and V were made of, what the verdict gives, and forced
        tokens that end the answer.
        """
        return [*self.taken, *self.tokens, *self.ending]

    @property
    def size(self) -> int:
        """Rows that this turn cost the target."""
        return self.tree.size + len(self.taken)

    @property
    def drafted(self) -> TokenTree:
        """What is the drafter's own of the tree."""
        return self.tree if self.constrained is None else self.constrained.drafted

    @property
    def drafted_path(self) -> list[int]:
        """The accepted nodes of :attr:`drafted`, the root first."""
        path = self.verdict.path[: len(self.tokens) + 1]
        return path if self.constrained is None else self.constrained.drafted_path(path)

    def read_tree(self) -> None:
        """Work out what is told of the tree whatever becomes of it: to be asked for while the target's pass runs."""
        _ = self.level_ranks, self.nodes_of_parts

    @functools.cached_property
    def level_ranks(self) -> LevelRanks:
        """Those of :attr:`drafted`."""
        return LevelRanks(self.drafted)

    @functools.cached_property
    def nodes_of_parts(self) -> dict[str, set[int]]:
        """Of each part that a drafter told of, the nodes of :attr:`drafted` that it proposed."""
        nodes = dict[str, set[int]]()
        for draws in self.drafted.draws_N:
            for draw in draws:
                if PART in draw.drafter:
                    nodes.setdefault(draw.drafter, set()).add(draw.node)
        return nodes

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Of each part that a drafter told of: nodes that it proposed, and those of them that were accepted."""
        if not self.nodes_of_parts:
            return {}
        kept = set(self.drafted_path)
        return {part: (len(own), len(own & kept)) for part, own in self.nodes_of_parts.items()}

    @property
    def accepted_parts(self) -> list[list[str]]:
        """Of each accepted token the parts that proposed it."""
        return [[part for part, own in self.nodes_of_parts.items() if node in own] for node in self.drafted_path[1:]]

    def told_of_constraint(self) -> dict[str, float]:
        """What the request's constraint did, and the seconds that it took since this was last asked."""
        state = self.active.state
        seconds, state.constraint_s = state.constraint_s, 0.0
        done = self.constrained or ConstrainedTree(self.tree, self.tree)
        return {
            "seconds": seconds,
            "pruned": done.pruned,
            "taken": len(self.taken) + len(self.ending),
            "added": len(done.added),
            "added_accepted": len(set(done.added).intersection(self.verdict.path[: len(self.tokens) + 1])),
        }

    @functools.cached_property
    def path_hidden(self) -> Hidden:
        """The tapped states of what was committed, in order: layer → [N, M]."""
        hidden = self.pass_hidden
        if not self.fed_hidden:
            return hidden
        return {layer: torch.cat([self.fed_hidden[layer], h_NM]) for layer, h_NM in hidden.items()}

    @functools.cached_property
    def pass_hidden(self) -> Hidden:
        """Those of them that the pass gave; copies, which do not keep the whole pass in memory."""
        hidden, rows = self.scores.hidden, self.rows
        if rows == [*range(len(rows))]:
            return {layer: h_NM[: len(rows)].clone() for layer, h_NM in hidden.items()}
        if not hidden:
            return {}
        # one upload for all layers
        index_N = numbers_on(next(iter(hidden.values())).device, rows)
        return {layer: h_NM.index_select(0, index_N.to(h_NM.device)) for layer, h_NM in hidden.items()}


def going_on(turns: Sequence[Turn]) -> list[Turn]:
    """Those whose request has not ended."""
    return [turn for turn in turns if not turn.active.ended]
