"""What the token cycle keeps, clips, counts and tells: a table as target, and a drafter whose guesses are known.

Legend: M model dim (a table's hidden state is its row of logits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, Policy, Request, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.testing.tables import TableModel
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_verifiers.multi_step import MultiStep

VOCABULARY, SEED, PROMPT = 7, 3, (2, 6, 0, 4)
LONG, UNLIMITED = 16, 1 << 20


def continuation(length: int, penalty: float = 1.0, prompt: Sequence[int] = PROMPT) -> list[int]:
    """Plain greedy decoding by hand, the repetition penalty token by token."""
    table, tokens = TableModel(VOCABULARY, SEED), list(prompt)
    for _ in range(length):
        score = table.logits(tokens).tolist()
        for token in set(tokens):
            score[token] = score[token] / penalty if score[token] > 0 else score[token] * penalty
        tokens.append(score.index(max(score)))
    return tokens[len(prompt) :]


class Knowing(Drafter):
    """Drafts the next tokens of ``script``, after a wrong child with a child of its own at every node but the last.

    Notes what it is asked for and told. The wrong child carries what comes after the right one.
    """

    name = "knowing"
    taps = (1,)

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.started = False
        self.asked: list[Budget] = []
        self.observed: list[int] = []
        self.hidden: list[torch.Tensor] = []

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        self.started = True

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        self.asked.append(budget)
        tree, node = TreeBuilder(request.pending_token, budget.nodes), 0
        coming = [*self.script[request.new_tokens :], 0, 0][: budget.depth]
        for depth, token in enumerate(coming):
            # room for the rest of the right path is kept
            if tree.room >= len(coming) - depth + 2 and depth + 1 < len(coming):
                tree.add(tree.add(node, (token + 1) % VOCABULARY, "chosen"), coming[depth + 1], "chosen")
            node = tree.add(node, token, "chosen")
        return tree.build().tree

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        assert path_hidden is not None
        for request, new, hidden in zip(requests, committed, path_hidden, strict=True):
            assert request.tokens[-len(new) :] == list(new)
            self.observed += new
            self.hidden += hidden[1]


class Granting(Policy):
    """Always the same budget."""

    name = "granting"

    def budget(self, request: Request) -> Budget:
        budget: Budget = self.config
        return budget


class Answer(NamedTuple):
    """``tokens`` as they were yielded."""

    tokens: list[int]
    request: Request
    target: TableModel
    drafter: Knowing
    cycles: list[dict[str, Any]]
    finish_reason: str


def answer(
    max_new_tokens: int = LONG,
    *,
    stop: int | None = None,
    budget: Budget | None = None,
    context: int = UNLIMITED,
    penalty: float = 1.0,
    prompt: Sequence[int] = PROMPT,
) -> Answer:
    target = TableModel(VOCABULARY, SEED, context=context)
    drafter = Knowing(continuation(LONG, penalty, prompt))
    sampler = reference_sampler(SamplingParams(repetition_penalty=penalty))
    request = request_for(prompt, sampler, 0, max_new_tokens)
    request.stop_ids = frozenset() if stop is None else frozenset({stop})
    events: list[dict[str, Any]] = []
    scheduler = Scheduler(target, drafter, MultiStep(None), Granting(budget or Budget(4)))
    tokens = [token for new in scheduler.run(request, events.append) for token in new]
    cycles = [event for event in events if event["event"] == "cycle"]
    return Answer(tokens, request.view, target, drafter, cycles, events[-1]["finish_reason"])


def assert_in_step(given: Answer, expected: list[int]) -> None:
    """Target, drafter, events and request all hold the same answer, ``expected``."""
    text = list(given.request.tokens)
    assert given.tokens == expected and text[given.request.prompt_length :] == expected
    assert [token for cycle in given.cycles for token in cycle["tokens"]] == expected
    assert [cycle["step"] for cycle in given.cycles] == list(range(1, len(given.cycles) + 1))
    # the pending token is in no cache
    assert given.target.length() == len(text) - 1
    # one that is never asked is never started, and hears of nothing
    assert given.drafter.started == bool(given.drafter.asked)
    if given.drafter.started:
        assert given.drafter.observed == expected
        # every committed node's hidden state was told
        states = [given.target.logits(text[: i + 1]) for i in range(given.request.prompt_length - 1, len(text) - 1)]
        assert torch.equal(torch.stack(given.drafter.hidden), torch.stack(states))
    else:
        assert not given.drafter.observed
    (again,) = given.target.score([0], [TokenTree.root_only(text[-1])])
    assert torch.equal(again.logits_NV[0], given.target.logits(text))
    # all guesses are right, so that only the answer's end makes it fewer than all drafted tokens and the bonus token
    for cycle in given.cycles[:-1]:
        assert len(cycle["tokens"]) == cycle["drafted"] + 1
    for cycle in given.cycles:
        assert cycle["accepted"] == min(cycle["drafted"], len(cycle["tokens"]))


@pytest.mark.parametrize("depth", [1, 2, 4, 9])
@pytest.mark.parametrize("stop", range(VOCABULARY))
def test_an_answer_ends_with_its_first_stop_token(stop: int, depth: int) -> None:
    expected = continuation(LONG)
    if stop in expected:
        expected = expected[: expected.index(stop) + 1]
    given = answer(stop=stop, budget=Budget(depth))
    assert_in_step(given, expected)
    assert given.finish_reason == ("stop" if expected[-1] == stop else "length")


def test_a_cycle_may_hold_a_stop_token_twice_and_more_behind_it() -> None:
    """Of the answers above: several kinds of clipping must be among them."""
    expected = continuation(10)
    assert any(expected.count(token) > 1 and expected.index(token) < 8 for token in expected)
    assert any(expected.index(token) == 0 for token in expected)


def test_a_stop_token_at_the_end_of_the_prompt_is_none() -> None:
    given = answer(stop=PROMPT[-1])
    assert given.tokens and given.tokens[0] == continuation(1)[0]


@pytest.mark.parametrize("depth", [1, 3, 9])
@pytest.mark.parametrize("wanted", range(1, 10))
def test_an_answer_has_the_wanted_length_and_no_token_is_drafted_in_vain(wanted: int, depth: int) -> None:
    """The last of the wanted tokens is the target's own, whatever was drafted."""
    given = answer(wanted, budget=Budget(depth))
    assert_in_step(given, continuation(wanted))
    assert given.finish_reason == "length"
    left = wanted
    for cycle in given.cycles:
        assert cycle["budget"] == cycle["drafted"] == min(depth, left - 1)
        left -= len(cycle["tokens"])


@pytest.mark.parametrize("room", range(1, 9))
def test_an_answer_ends_with_the_context(room: int) -> None:
    context = len(PROMPT) + room
    given = answer(context=context, budget=Budget(3))
    assert_in_step(given, continuation(room))
    assert given.finish_reason == "length"
    # the deepest node's position, and that of the token after it
    assert all(cycle["prefix"] + cycle["drafted"] + 1 < context for cycle in given.cycles)


@pytest.mark.parametrize("nodes", range(1, 7))
def test_the_depth_is_what_the_nodes_allow(nodes: int) -> None:
    given = answer(budget=Budget(5, nodes))
    assert_in_step(given, continuation(LONG))
    assert all(asked.nodes == nodes and 1 <= asked.depth < nodes for asked in given.drafter.asked)
    assert bool(given.drafter.asked) == (nodes > 1)


@pytest.mark.parametrize("penalty", [1.6, 0.5])
@pytest.mark.parametrize("prompt", [PROMPT, (1,)])
def test_every_node_is_penalised_for_the_tokens_before_it(penalty: float, prompt: Sequence[int]) -> None:
    """Those of the prompt, the pending token and its own path; not those of its siblings."""
    expected = continuation(LONG, penalty, prompt)
    assert expected != continuation(LONG, 1.0, prompt)
    assert_in_step(answer(penalty=penalty, prompt=prompt), expected)
