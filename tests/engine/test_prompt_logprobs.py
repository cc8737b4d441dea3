"""Log-probabilities of a prompt: every row of it is computed, a piece at a time, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.contracts.drafter import Hidden
from spec_sdk.contracts.request import Request
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.told_logits import SCORED_CHUNK
from spec_sdk.model.session import Scores
from spec_sdk.testing import TableDrafter, TableModel
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.plans import TREES

VOCABULARY = 5
PROMPT = torch.randint(VOCABULARY, (2 * SCORED_CHUNK + 70,), generator=torch.Generator().manual_seed(3)).tolist()


class Tapped(TableDrafter):
    """Notes the hidden states of prompts."""

    taps = (1,)

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        self.states = [hidden.get(1, torch.empty(0)) for hidden in prompt_hidden]


def events_of(scheduler: Scheduler, prompt: Sequence[int], **options: Any) -> list[dict[str, Any]]:
    state = request_for(prompt, reference_sampler(SamplingParams(temperature=1.0)), 0, 8)
    for name, value in options.items():
        setattr(state, name, value)
    events: list[dict[str, Any]] = []
    for _ in scheduler.run(state, events.append):
        pass
    return events


def scheduler_of(target: TableModel) -> Scheduler:
    tables = [TableModel(VOCABULARY, seed) for seed in (42, 43)]
    drafter = Tapped(tables, TREES["all kinds, two drafters"])
    return Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None))


def tokens(events: Sequence[dict[str, Any]]) -> list[int]:
    return [token for event in events if event["event"] == "cycle" for token in event["tokens"]]


def test_they_are_the_target_s_and_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    target, sizes = TableModel(VOCABULARY, 41), list[int]()
    own = TableModel.prefill_scored

    def spy(self: TableModel, slot: int, new: Sequence[int], taps: Sequence[int] = ()) -> Scores:
        sizes.append(len(new))
        return own(self, slot, new, taps)

    scheduler = scheduler_of(target)
    expected = events_of(scheduler, PROMPT)
    drafter = scheduler.drafter
    assert isinstance(drafter, Tapped)
    states = drafter.states
    monkeypatch.setattr(TableModel, "prefill_scored", spy)
    # the slot's cache has all of the prompt by now
    events = events_of(scheduler, PROMPT, prompt_logprobs=2)
    assert sizes == [SCORED_CHUNK, SCORED_CHUNK, 69]
    [prefill] = [event for event in events if event["event"] == "prefill"]
    assert "kept" not in prefill and len(prefill["logprobs"]) == len(PROMPT) - 1
    for place, (token, logprob, top) in enumerate(prefill["logprobs"], 1):
        own_V = target.logits(PROMPT[:place]).log_softmax(-1)
        assert token == PROMPT[place] and logprob == pytest.approx(float(own_V[token]), abs=1e-5)
        assert [value for _, value in top] == pytest.approx(own_V.topk(2).values.tolist(), abs=1e-5)
    assert tokens(events) == tokens(expected)
    [given_NM], [own_NM] = drafter.states, states
    assert torch.equal(given_NM, own_NM) and len(own_NM) == len(PROMPT) - 1
    # whoever asks for nothing takes over what the cache has
    [prefill] = [event for event in events_of(scheduler, PROMPT) if event["event"] == "prefill"]
    assert prefill["kept"] == len(PROMPT) - 1 and "logprobs" not in prefill


def test_a_prompt_of_one_token_has_none() -> None:
    events = events_of(scheduler_of(TableModel(VOCABULARY, 41)), [3], prompt_logprobs=0)
    [prefill] = [event for event in events if event["event"] == "prefill"]
    assert prefill["logprobs"] == [] and len(tokens(events)) == 8
