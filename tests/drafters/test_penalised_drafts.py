"""Drafts under a repetition penalty: a draft model that is the target itself guesses everything right."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk.contracts import SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.session import Session
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_growth.static import StaticConfig, StaticGrowth
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels

CONFIGS = {
    "chain": DraftModelConfig(),
    "tree": DraftModelConfig(growth=StaticGrowth(StaticConfig([2, 2, 1]))),
}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_penalised_draft_is_the_penalised_target(config: str, temperature: float) -> None:
    """Each drafted token is penalised for the prompt and for its own path: then the first path of a tree is kept."""
    decoder = tiny_decoder("smollm", 0)
    params = SamplingParams(temperature=temperature, repetition_penalty=1.7)
    request = request_for([30, 31, 32, 40, 30], reference_sampler(params), 0, max_new_tokens=40)
    models = TinyModels(decoder, decoder)
    drafter = DraftModelDrafter(CONFIGS[config], models)
    events: list[dict[str, Any]] = []
    target = Session(models.target.executor)
    scheduler = Scheduler(target, drafter, MultiStep(None), FixedPolicy(FixedConfig(depth=4)))
    for _ in scheduler.run(request, events.append):
        pass
    cycles = [event for event in events if event["event"] == "cycle"]
    assert sum(cycle["drafted"] for cycle in cycles) > 20
    assert [cycle["accepted"] for cycle in cycles] == [cycle["drafted"] for cycle in cycles]
