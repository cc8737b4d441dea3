"""A drafter is started when it is first asked, and drafts then as one started with the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spec_sdk.contracts import Budget, Policy, Request, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import HostClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels


class Watched(DraftModelDrafter):
    """Notes when it was started and observed, in numbers of new tokens."""

    def __init__(self) -> None:
        # the draft model is the target itself, so that drafts are right if the draft cache is
        super().__init__(DraftModelConfig(), TinyModels(draft=tiny_decoder("smollm", 0)))
        self.calls: list[str] = []

    def start(self, requests: Sequence[Request], prompt_hidden: Any = None) -> None:
        self.calls += [f"start at {request.new_tokens}" for request in requests]
        super().start(requests, prompt_hidden)

    def observe(self, requests: Sequence[Request], committed: Sequence[Sequence[int]], path_hidden: Any = None) -> None:
        self.calls.append("observe")
        super().observe(requests, committed, path_hidden)


class Script(Policy):
    """Given budgets, by step."""

    name = "script"

    def budget(self, request: Request) -> Budget:
        return Budget(self.config[request.step % len(self.config)])


def run(policy: Policy) -> tuple[list[dict[str, Any]], Watched]:
    drafter, events = Watched(), list[dict[str, Any]]()
    request = request_for([30, 31, 32, 40], ReferenceSampler(None, SamplingParams()), 0, max_new_tokens=30)
    target = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops()))
    scheduler = Scheduler(target, drafter, MultiStep(None), policy)
    for _ in scheduler.run(request, events.append):
        pass
    return events, drafter


def tokens(events: list[dict[str, Any]]) -> list[int]:
    return [token for event in events if event["event"] == "cycle" for token in event["tokens"]]


def test_a_drafter_that_is_never_asked_is_never_started() -> None:
    events, drafter = run(FixedPolicy(FixedConfig(depth=0)))
    assert drafter.calls == [] and events[1]["drafter_s"] is None and len(tokens(events)) == 30


def test_one_that_is_asked_at_once_is_started_with_the_prefill() -> None:
    events, drafter = run(FixedPolicy(FixedConfig(depth=3)))
    assert drafter.calls[0] == "start at 0" and drafter.calls.count("start at 0") == 1
    assert 0 < events[1]["drafter_s"] < events[1]["seconds"]


def test_one_that_taps_the_target_is_given_all_its_states_when_it_is_asked() -> None:
    """Those of the prompt and of what was decoded plainly since, as in one pass over both."""
    given: list[tuple[int, Mapping[int, torch.Tensor]]] = []

    class Tapping(NoDraft):
        taps = (1, 3)

        def start(self, requests: Sequence[Request], prompt_hidden: Any = None) -> None:
            given.extend((len(request.tokens), hidden) for request, hidden in zip(requests, prompt_hidden, strict=True))

    request = request_for([30, 31, 32, 40], ReferenceSampler(None, SamplingParams()), 0, max_new_tokens=8)
    target, events = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops())), list[dict[str, Any]]()
    for _ in Scheduler(target, Tapping(None, TinyModels()), MultiStep(None), Script([0, 0, 3])).run(
        request, events.append
    ):
        pass
    ((length, hidden),) = given
    assert length == 4 + 2 and events[1]["drafter_s"] is None
    alone = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops())).prefill(0, request.tokens[: length - 1], (1, 3))
    for layer, states_NM in alone.items():
        assert torch.allclose(hidden[layer], states_NM, atol=1e-5)


class Slow(Watched):
    """Its start takes five seconds of a clock that nothing else moves."""

    now = 0.0

    def start(self, requests: Sequence[Request], prompt_hidden: Any = None) -> None:
        Slow.now += 5.0
        super().start(requests, prompt_hidden)


class Stopped(HostClock):
    """A clock that shows :attr:`Slow.now`."""

    def mark(self) -> float:
        return Slow.now


def test_a_late_start_is_no_time_of_the_requests_beside_it() -> None:
    target, told = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops())), dict[int, list[dict[str, Any]]]()
    scheduler = Scheduler(target, Slow(), MultiStep(None), Script([0, 2, 2, 2, 2]), slots=2, clock=Stopped())
    for number, first in enumerate((30, 50)):
        sampler = ReferenceSampler(None, SamplingParams())
        state = request_for([first, 31, 32, 40], sampler, number, max_new_tokens=40, slot=number)
        scheduler.add(state, told.setdefault(number, []).append)
        # the first is drafting when the second one comes
        for _ in range(3):
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
    for events in told.values():
        cycles = [event["draft_s"] for event in events if event["event"] == "cycle"]
        assert cycles[0] == 0 and cycles[1] == 5.0 and not any(cycles[2:])


def test_one_that_is_asked_late_drafts_as_well() -> None:
    events, drafter = run(Script([0, 0, 3, 2, 0]))
    cycles = [event for event in events if event["event"] == "cycle"]
    assert events[1]["drafter_s"] is None and drafter.calls[0] == "start at 2"
    assert [cycle["budget"] for cycle in cycles[:5]] == [0, 0, 3, 2, 0]
    assert [cycle["accepted"] for cycle in cycles[:5]] == [0, 0, 3, 2, 0]
    assert tokens(events) == tokens(run(FixedPolicy(FixedConfig(depth=0)))[0])
