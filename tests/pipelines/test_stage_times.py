"""Where the time of a cycle goes, by a clock that advances where work is done."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Request, SamplingParams, Verdict
from spec_sdk.engine import scheduler
from spec_sdk.model.session import EpilogueOf, Scores
from spec_sdk.model.step_clock import HostClock
from spec_sdk.testing import TableDrafter, TableModel
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk.testing.tables import PlannedDraw
from spec_sdk.tree import TokenTree
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.chain_rejection import ChainRejection


def test_the_verdict_is_told_apart_from_the_targets_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Target(TableModel):
        def score(
            self,
            slots: Sequence[int],
            trees: Sequence[TokenTree],
            taps: Sequence[int] = (),
            epilogue: EpilogueOf | None = None,
        ) -> list[Scores]:
            now[0] += 16.0
            return super().score(slots, trees, taps)

    class Slow(ChainRejection):
        def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
            now[0] += 2.0
            return super().verify_one(tree, logits_NV, request)

    class Clock(HostClock):
        def mark(self) -> float:
            return now[0]

    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    drafter = TableDrafter([TableModel(6, 2)], [[PlannedDraw("with_replacement")]] * 2)
    events: list[dict[str, Any]] = []
    run = scheduler.Scheduler(Target(6, 1), drafter, Slow(None), DeepestPolicy(None), clock=Clock())
    for _ in run.run(request_for([1], ReferenceSampler(None, SamplingParams(temperature=1.0)), 0), events.append):
        pass
    cycles = [event for event in events if event["event"] == "cycle"]
    assert cycles and {(event["verify_s"], event["verdict_s"]) for event in cycles} == {(18.0, 2.0)}
    assert {event["draft_s"] + event["recover_s"] for event in cycles} == {0.0}
