"""Cycles with drafts that are begun before the events of the cycle before are emitted, on captured passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spec_sdk.contracts import Budget, Drafter, Policy, Request
from spec_sdk.contracts.drafter import Hidden
from spec_sdk.errors import PluginFault
from spec_sdk.model.session import Session
from spec_sdk.policy import FixedPolicy
from spec_sdk.policy.fixed import FixedConfig
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.noting_drafter import NotingDrafter
from tests.support.served_requests import MODELS, PROMPTS, Marks, Served

SLOTS = 2


class Repeats(Drafter):
    """Drafts the pending token again and again, and beside it a five; notes what it is asked and told."""

    name = "repeats"

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__(None, MODELS)
        self.fails_at = fails_at
        self.asked: list[tuple[int, int]] = []
        self.ended: list[int] = []

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        self.asked.append((request.id, request.step))
        if request.step == self.fails_at:
            raise ValueError("out of ideas")
        tree, node = TreeBuilder(request.pending_token), 0
        for _ in range(budget.depth):
            tree.add(node, 5, "chosen")
            node = tree.add(node, request.pending_token, "chosen")
        return tree.build().tree

    def finish(self, requests: Sequence[Request]) -> None:
        self.ended += [request.id for request in requests]


Events = list[dict[str, Any]]


def serving(
    monkeypatch: pytest.MonkeyPatch,
    captured: bool = True,
    drafter: Drafter | None = None,
    policy: Policy | None = None,
) -> tuple[Served, Events]:
    """Two slots, depth 3, and the events in their order."""
    events: Events = []
    fixed = policy or FixedPolicy(FixedConfig(depth=3))
    one = Served(captured, SLOTS, monkeypatch, drafter or Repeats(), fixed)
    one.emit = events.append
    return one, events


def untimed(events: Events, request: int) -> Events:
    """A request's events without what clocks say."""
    own = [event for event in events if event["request"] == request]
    return [{key: value for key, value in event.items() if not key.endswith(("_s", "seconds"))} for event in own]


def of_both(monkeypatch: pytest.MonkeyPatch, act: Callable[[Served], None]) -> tuple[Served, Events]:
    """What was served with cycles that are begun ahead, after the same was served without, to the same end."""
    found = []
    for captured in (False, True):
        one, events = serving(monkeypatch, captured)
        act(one)
        found.append((one.run(), one.reasons, events, one))
    eager, ahead = found
    assert eager[:2] == ahead[:2]
    for request in eager[0]:
        assert untimed(ahead[2], request) == untimed(eager[2], request)
    return ahead[3], ahead[2]


def test_tokens_and_events_are_those_of_cycles_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(one: Served) -> None:
        for number, prompt in enumerate(PROMPTS):
            one.add(number, prompt, 9 + 4 * number)

    one, events = of_both(monkeypatch, act)
    cycles = [event for event in events if event["event"] == "cycle"]
    assert any(event["accepted"] for event in cycles) and not all(event["accepted"] for event in cycles)
    assert all(event["host_reads"] == 1 for event in cycles)
    assert not one.launched, "these passes have drafts"


def test_the_next_pass_is_there_before_anything_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, behind = 0, []
    score = Session.score

    def counted(session: Session, *arguments: Any) -> Any:
        nonlocal passes
        passes += 1
        return score(session, *arguments)

    monkeypatch.setattr(Session, "score", counted)
    one, events = serving(monkeypatch)
    one.emit = lambda event: behind.append((event["event"], passes))
    one.add(0, PROMPTS[1], 12)
    one.run()
    cycles = [passed for kind, passed in behind if kind == "cycle"]
    assert cycles == [*range(2, len(cycles) + 1), len(cycles)], "none is begun behind the last"
    assert [kind for kind, _ in behind] == ["request_start", "prefill", *["cycle"] * len(cycles), "request_end"]


def test_a_policy_has_learned_from_a_cycle_when_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Noted(Policy):
        name = "noted"

        def for_request(self) -> Noted:
            return self

        def budget(self, request: Request) -> Budget:
            happened.append(f"asked {request.step}")
            return Budget(2, 5)

        def observe(self, event: Any) -> None:
            happened.append(f"told {event.get('step', 0)}")

    one, _ = serving(monkeypatch, policy=Noted(None))
    one.add(0, PROMPTS[0], 6)
    one.run()
    behind_prefill = happened[happened.index("told 0") + 1 :]
    steps = len(behind_prefill) // 2
    assert behind_prefill == [line for step in range(steps) for line in (f"asked {step}", f"told {step + 1}")]


def test_who_is_cancelled_leaves_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cycle that was begun for both goes on for one, and the slot's next request finds nothing of it."""

    def act(one: Served) -> None:
        for number in (0, 1):
            one.add(number, PROMPTS[number], 16)
        for _ in range(4):
            one.step()
        one.scheduler.cancel(0)
        one.add(2, [*PROMPTS[0], *one.tokens[0], 7], 9)

    _, events = of_both(monkeypatch, act)
    kinds = [event["event"] for event in events if event["request"] == 0]
    assert kinds[-1] == "request_end" and kinds.count("request_end") == 1


def test_a_cycle_of_which_none_is_left_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds logits; and the next request's first step is as any other's."""
    one, _ = serving(monkeypatch)
    for number in (0, 1):
        one.add(number, PROMPTS[number], 16)
    for _ in range(3):
        one.step()
    one.scheduler.cancel(0)
    assert one.scheduler._begun_ahead is not None, "it is the other one's too"
    one.scheduler.cancel(1)
    assert one.scheduler._begun_ahead is None
    one.add(2, PROMPTS[2], 16)
    one.step()
    assert one.tokens[2]


def test_a_drafter_s_error_comes_behind_the_tokens_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Repeats(fails_at=3)
    one, events = serving(monkeypatch, drafter=drafter)
    one.add(0, PROMPTS[0], 16)
    progress = []
    while one.scheduler.busy:
        progress += one.scheduler.step()
    assert [bool(made.tokens) for made in progress] == [True, True, True, False]
    assert isinstance(progress[-1].error, ValueError | PluginFault) and progress[-1].finish_reason == "error"
    assert [event["event"] for event in events][-2:] == ["cycle", "request_end"]
    assert drafter.ended == [0] and not one.scheduler.step()


class Pauses(Policy):
    """Drafts in six steps of twenty."""

    name = "pauses"

    def budget(self, request: Request) -> Budget:
        return Budget(3 if request.step % 20 < 6 else 0, 9)


@pytest.mark.parametrize("pauses", [False, True])
def test_the_time_between_steps_is_no_stage_s(pauses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the tokens may take long over it; policies would take it for what a verdict or a pass costs."""
    clock = Marks()
    one, events = serving(monkeypatch, policy=Pauses(None) if pauses else None)
    one.scheduler._clock = clock
    one.add(0, PROMPTS[0], 50)
    while one.scheduler.busy:
        one.step()
        clock.now += 1000.0
    cycles = [event for event in events if event["event"] == "cycle"]
    assert len(cycles) > 10 and (one.taken > 0) == pauses
    for event in cycles:
        assert event["draft_s"] + event["verify_s"] < 10


def test_who_is_about_to_join_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was added has its first cycle with the others' next one."""
    drafter = Repeats()
    one, _ = serving(monkeypatch, drafter=drafter)
    one.add(0, PROMPTS[0], 30)
    one.add(1, PROMPTS[1], 30)
    one.step()
    assert drafter.asked == [(0, 0)], "the other one's prompt is not done"
    one.step()
    one.step()
    assert [step for request, step in drafter.asked if request == 0] == [0, 1, 2, 3]
    assert [step for request, step in drafter.asked if request == 1] == [0, 1, 2]


def test_an_interrupt_while_events_are_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request ends once, and nothing that was begun is gone on with."""
    one, events = serving(monkeypatch)

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "cycle" and event["step"] == 3 and event["request"] == 0:
            raise KeyboardInterrupt

    one.emit = emit
    for number in (0, 1):
        one.add(number, PROMPTS[number], 30)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    ends = [(event["request"], event["finish_reason"]) for event in events if event["event"] == "request_end"]
    assert sorted(ends) == [(0, "interrupted"), (1, "interrupted")] and not one.scheduler.busy
    one.emit = events.append
    one.add(2, PROMPTS[2], 8)
    other, _ = serving(monkeypatch, captured=False)
    other.add(2, PROMPTS[2], 8)
    assert one.run()[2] == other.run()[2]


def test_who_fails_to_take_events_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others get all of theirs, and nothing is left for a later step."""
    one, events = serving(monkeypatch)

    def fails(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] in ("cycle", "request_end"):
            raise OSError("the disk is full")

    one.emit = fails
    one.add(0, PROMPTS[0], 30)
    one.emit = events.append
    one.add(1, PROMPTS[1], 30)
    with pytest.raises(OSError, match="full"):
        one.run()
    told = [(event["request"], event["event"]) for event in events]
    assert told.count((0, "request_end")) == told.count((1, "request_end")) == 1
    before = len(events)
    one.add(2, PROMPTS[2], 8)
    one.run()
    assert {event["request"] for event in events[before:]} == {2}


class Listens(NotingDrafter, Repeats):
    """Taps a layer, and notes the rows of what it is told."""

    taps = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def _note(self, request: Request, hidden: Hidden) -> None:
        self.rows.append(len(hidden[1]))


def test_hidden_states_of_a_pass_are_there_when_it_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Listens()
    one, _ = serving(monkeypatch, drafter=drafter)
    one.add(1, PROMPTS[1], 20)
    assert len(one.run()[1]) == 20 == sum(drafter.rows)
