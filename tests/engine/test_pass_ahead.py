"""Plain steps whose pass is launched before the last one's verdict is read, on captured passes that are repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Policy, Request
from spec_sdk.contracts.drafter import Hidden
from spec_sdk.engine.pass_ahead import PAUSED_FOR
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.testing.random_weights import TINY
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.noting_drafter import NotingDrafter
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from tests.support.served_requests import MODELS, PROMPTS, Marks, Served


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool, int], Served]:
    return lambda captured, slots: Served(captured, slots, monkeypatch)


def both(served: Callable[[bool, int], Served], slots: int, act: Callable[[Served], None]) -> Served:
    """What was served with captured passes, after the same was served without."""
    eager = served(False, slots)
    act(eager)
    expected = eager.run()
    assert not eager.launched
    captured = served(True, slots)
    act(captured)
    assert captured.run() == expected and captured.reasons == eager.reasons
    return captured


def test_one_request(served: Callable[[bool, int], Served]) -> None:
    """Its first step is asked for, none behind its last one is launched, and all are one capture."""
    found = both(served, 1, lambda one: one.add(0, PROMPTS[0], 12))
    assert found.launched == found.taken == 11
    executor = found.session.executor
    assert isinstance(executor, GraphExecutor) and executor.captures <= 2


def test_requests_of_unlike_lengths_one_after_the_other(served: Callable[[bool, int], Served]) -> None:
    """A slot's next request begins with tokens that the pass that was of no use had been over, or near them."""

    def act(one: Served) -> None:
        for number, prompt in enumerate(PROMPTS):
            one.add(number, prompt, 5 + 3 * number)

    found = both(served, 2, act)
    assert found.launched > found.taken > 5


def test_a_stop_token_ends_an_answer_whose_next_pass_runs(served: Callable[[bool, int], Served]) -> None:
    first = served(False, 1)
    first.add(0, PROMPTS[0], 8)
    answer = first.run()[0]
    at = next(i for i, token in enumerate(answer) if i and token not in answer[:i])

    def act(one: Served) -> None:
        one.add(0, PROMPTS[0], 8, [answer[at]])
        one.run()
        # the slot's cache has what the pass behind the end wrote
        one.add(1, [*PROMPTS[0], *answer[: at + 1], 7], 6)

    found = both(served, 1, act)
    assert found.reasons[0] == "stop" and len(found.tokens[0]) == at + 1
    assert found.launched == found.taken + 1


def test_others_go_on_when_one_is_cancelled(served: Callable[[bool, int], Served]) -> None:
    def act(one: Served) -> None:
        for number in (0, 1):
            one.add(number, PROMPTS[number], 10)
        for _ in range(5):
            one.step()
        one.scheduler.cancel(0)

    assert both(served, 2, act).taken >= 5


def test_a_pass_over_another_token_is_not_taken(served: Callable[[bool, int], Served]) -> None:
    """Whatever made the request's text go on otherwise, the pass is made again."""

    def act(one: Served) -> None:
        one.add(0, PROMPTS[2], 9)
        for _ in range(3):
            one.step()
        (active,) = one.scheduler._roster.active
        active.state.tokens[-1] = 3

    found = both(served, 1, act)
    assert found.launched == found.taken + 1


def test_nothing_is_launched_that_would_put_the_cache_elsewhere(
    served: Callable[[bool, int], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphExecutor, "new_cache", TorchExecutor.new_cache)
    found = both(served, 1, lambda one: one.add(0, PROMPTS[0], 140))
    assert found.taken == found.launched < 139


class OnAndOff(Policy):
    """Grants drafts in the first two of every twelve steps."""

    name = "on_and_off"

    def budget(self, request: Request) -> Budget:
        return Budget(2 if request.step % 12 < 2 else 0, 3)


class Fives(NotingDrafter):
    """Drafts fives, which are seldom right, and notes the states that it is told of."""

    name = "fives"
    taps = (1, 2)

    def __init__(self) -> None:
        super().__init__(None, MODELS)
        self.told: list[torch.Tensor] = []

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.chain(request.pending_token, [5] * budget.depth)

    def _note(self, request: Request, hidden: Hidden) -> None:
        self.told += [hidden[layer] for layer in self.taps]


def test_where_drafting_has_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter hears of the same tokens and states; a pass is of no use where drafting begins again."""
    told = []
    for captured in (False, True):
        drafter = Fives()
        one = Served(captured, 1, monkeypatch, drafter, OnAndOff(None))
        one.add(0, PROMPTS[0], 40)
        told.append((one.run(), drafter.told))
    assert told[0][0] == told[1][0] and len(told[0][1]) == len(told[1][1])
    for found, expected in zip(told[1][1], told[0][1], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    pauses = 40 // 12
    assert one.launched - one.taken in (pauses - 1, pauses)
    assert one.taken > (pauses - 1) * (10 - PAUSED_FOR - 2)


class InTargetsCache(Drafter):
    """Asks the target's own cache, with half of its layers, and proposes nothing of it."""

    name = "in_targets_cache"

    def __init__(self) -> None:
        super().__init__(None, MODELS)
        self.runner = LayerSkipRunner(LayerSkipConfig(exit=1))
        self.runner.prepare(TINY.num_layers)

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree = TreeBuilder(request.pending_token)
        request.target.draft([request.slot], [tree], [1], self.runner)
        return tree.build().tree


def test_a_drafter_in_the_target_s_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes over what the pass ahead wrote, though the step is over the same token: the pass is made again."""
    found = []
    for captured in (False, True):
        one = Served(captured, 1, monkeypatch, InTargetsCache(), OnAndOff(None))
        one.add(0, PROMPTS[0], 40)
        found.append((one.run(), one.session.cache.k_LSGCD[:, 0, :, :40].clone()))  # type: ignore[attr-defined]
    assert found[0][0] == found[1][0] and one.launched > one.taken > 0
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-4, rtol=1e-4)


def test_a_pass_ahead_that_fails_costs_nobody_anything(
    served: Callable[[bool, int], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(session: Session, *arguments: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Session, "score_ahead", fails)

    def act(one: Served) -> None:
        for number in (0, 1):
            one.add(number, PROMPTS[number], 6)

    assert not both(served, 2, act).launched


def test_what_a_pass_of_no_use_cost_is_part_of_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts its own marks, a plain step of one pass takes one, and one behind a wrong guess more."""

    seconds: dict[int, float] = {}

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "cycle":
            seconds[event["step"]] = event["verify_s"]
            assert event["recover_s"] == 0.0 or event["step"] % 12 in (1, 2, 3, 4, 5, 6, 7)

    one = Served(True, 1, monkeypatch, Fives(), OnAndOff(None))
    one.scheduler._clock = Marks()
    one.emit = emit
    one.add(0, PROMPTS[0], 30)
    one.run()
    steps = sorted(seconds)
    usual = seconds[steps[10]]
    assert seconds[steps[12]] > usual, "drafting began again, and the pass ahead was of no use"
