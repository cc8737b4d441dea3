"""Log-probabilities are of the rows that the emitted tokens follow, whichever branches of a tree they lie on."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk.contracts import SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.testing import TableDrafter, TableModel
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.plans import TREES

PROMPT = [2, 0]


def test_they_are_of_the_accepted_path() -> None:
    target, *tables = (TableModel(4, seed) for seed in (41, 42, 43))
    drafter = TableDrafter(tables, TREES["all kinds, two drafters"])
    branches = 0
    for seed in range(8):
        state = request_for(PROMPT, reference_sampler(SamplingParams(temperature=1.0)), seed, 16)
        state.logprobs = 2
        events: list[dict[str, Any]] = []
        for _ in Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None)).run(state, events.append):
            pass
        prefix = list(PROMPT)
        for cycle in (event for event in events if event["event"] == "cycle"):
            branches += any(rank > 1 for rank in cycle["accepted_ranks"])
            for token, (told, logprob, top) in zip(cycle["tokens"], cycle["logprobs"], strict=True):
                own_V = target.logits(prefix).log_softmax(-1)
                assert told == token and logprob == pytest.approx(float(own_V[token]), abs=1e-5)
                assert [value for _, value in top] == pytest.approx(own_V.topk(2).values.tolist(), abs=1e-5)
                prefix.append(token)
    assert branches > 3
