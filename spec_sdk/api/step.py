"""A step of an answer as people see it: the token tree as texts, what was kept of it, where each token came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spec_sdk.engine.forced_tokens import FORCED
from spec_sdk.engine.step_trace import StepTrace
from spec_sdk.events import Event

Source = Literal["drafted", "forced", "bonus", "correction", "plain"]


@dataclass(frozen=True)
class Node:
    """A node of a token tree. ``text``: of its token in the middle of a text. ``parent``: None at the root.

    ``drafters``: who proposed it; nobody did the root, the pending token. The probabilities are those of
    :class:`spec_sdk.engine.step_trace.StepTrace`.
    """

    token: int
    text: str
    parent: int | None
    drafters: list[str]
    draft_probability: float | None
    target_probability: float | None

    @property
    def forced(self) -> bool:
        """Whether nobody drafted it, but the request's constraint left no other token."""
        return self.drafters == [FORCED]


@dataclass(frozen=True)
class NewToken:
    """A token that the answer took. ``piece``: its text, as in the nodes. ``text``: what it added to the answer's text,
    before stop strings are cut off; empty while a character is incomplete, and for a token that is no text.

    ``source``: ``drafted``, or ``forced`` by the request's constraint, and then ``node`` is its node in the tree; else
    the target's own: ``bonus`` after a path that was kept to its leaf, ``correction`` in the place of drafted
    tokens that were rejected, ``plain`` where nothing was drafted. ``probability``: the target's own, as in the nodes.
    """

    token: int
    piece: str
    text: str
    source: Source
    node: int | None
    probability: float | None


@dataclass(frozen=True)
class Step:
    """What a step did for an answer. ``number``: from 1. ``budget``: the depth that the policy granted.

    ``prefix``: tokens of prompt and answer before the root. ``nodes``: the tree in pre-order, parents before children.
    ``path``: the nodes whose tokens the answer took, the root first. Seconds are this answer's share of a step that
    served others too. ``attention_hits``: per layer, whether its attention was predicted rightly (None: not predicted);
    None if no attention was.
    """

    number: int
    budget: int
    prefix: int
    nodes: list[Node]
    path: list[int]
    tokens: list[NewToken]
    draft_s: float
    verify_s: float
    recover_s: float
    attention_hits: list[bool | None] | None


def step_of(cycle: Event, texts: Sequence[str], piece: Callable[[int], str]) -> Step:
    """A step from its ``cycle`` event, which has a ``trace``. ``texts``: of those of its tokens that the answer took.

    ``piece``: token id → its text.
    """
    trace = StepTrace(**cycle["trace"])
    parents = [None, *trace.parent_N[1:]]
    columns: Sequence[Sequence[Any]] = (parents, trace.drafter_N, trace.draft_probability_N, trace.target_probability_N)
    nodes = [Node(token, piece(token), *about) for token, *about in zip(trace.token_N, *columns, strict=True)]
    path = trace.path[: len(texts) + 1]
    drafted = path[1:]
    new = [
        NewToken(
            trace.token_N[node], nodes[node].text, text, _source(nodes[node]), node, trace.target_probability_N[node]
        )
        for node, text in zip(drafted, texts, strict=False)
    ]
    if len(texts) > len(drafted):
        assert trace.next_token is not None
        told = (trace.next_token, piece(trace.next_token), texts[-1])
        new.append(NewToken(*told, _own(trace, nodes), None, trace.next_probability))
    attention = cycle["attention"]
    return Step(
        number=cycle["step"],
        budget=cycle["budget"],
        prefix=cycle["prefix"],
        nodes=nodes,
        path=path,
        tokens=new,
        draft_s=cycle["draft_s"],
        verify_s=cycle["verify_s"],
        recover_s=cycle["recover_s"],
        attention_hits=None if attention is None else attention["hit"],
    )


def _source(node: Node) -> Source:
    return "forced" if node.forced else "drafted"


def _own(trace: StepTrace, nodes: Sequence[Node]) -> Source:
    """Where a token came from that the target added itself."""
    if all(node.forced for node in nodes[1:]):
        return "plain"
    return "correction" if trace.path[-1] in trace.parent_N else "bonus"
