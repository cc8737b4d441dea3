"""Requests served by a scheduler on a tiny model, by captured passes that are repeated or by eager ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Drafter, Policy, RequestState, SamplingParams, Verifier
from spec_sdk.engine.pass_ahead import PassAhead
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import StepClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.policy import FixedPolicy
from spec_sdk.policy.fixed import FixedConfig
from spec_sdk.testing import StaticOps, repeated
from spec_sdk.testing.defaults import reference_sampler
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_verifiers.greedy import Greedy

PROMPTS = [[5, 9, 17, 30, 5, 9, 17], [8, 3], [40, 41, 42, 43, 44], [5, 9, 17, 2]]
GREEDY = SamplingParams()
MODELS: Any = None
LAUNCH, HAND_OUT = PassAhead.launch, PassAhead.hand_out


class Served:
    """Requests of a scheduler, their tokens, and how often a pass was there before it was asked for."""

    def __init__(
        self,
        captured: bool,
        slots: int,
        monkeypatch: pytest.MonkeyPatch,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        verifier: Verifier | None = None,
        params: SamplingParams = GREEDY,
    ) -> None:
        decoder = load_decoder(RandomWeights(TINY, 0), torch.device("cpu"), torch.float32)
        self.ops = StaticOps()
        executor = GraphExecutor(decoder, self.ops, repeated) if captured else TorchExecutor(decoder, self.ops)
        self.session = Session(executor, SequentialRunner())
        drafter, policy = drafter or NoDraft(None, MODELS), policy or FixedPolicy(FixedConfig())
        self.scheduler = Scheduler(self.session, drafter, verifier or Greedy(None), policy, slots)
        self.params = params
        self.emit: Callable[[dict[str, Any]], None] = lambda event: None
        self.tokens: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.launched, self.taken = 0, 0

        def launching(*arguments: Any) -> PassAhead | None:
            made = LAUNCH(*arguments)
            self.launched += made is not None
            return made

        def handing(ahead: PassAhead, *arguments: Any) -> bool:
            done = HAND_OUT(ahead, *arguments)
            self.taken += done
            return done

        monkeypatch.setattr(PassAhead, "launch", launching)
        monkeypatch.setattr(PassAhead, "hand_out", handing)

    def add(self, number: int, prompt: Sequence[int], new_tokens: int, stop_ids: Sequence[int] = ()) -> None:
        self.tokens[number] = []
        self.scheduler.add(
            RequestState(
                tokens=list(prompt),
                prompt_length=len(prompt),
                max_new_tokens=new_tokens,
                sampler=reference_sampler(self.params),
                rng=torch.Generator().manual_seed(0),
                stop_ids=frozenset(stop_ids),
                id=number,
                # one for all, as an engine gives them: verdicts of one pass are made by one set of operations
                ops=self.ops,
            ),
            self.emit,
        )

    def step(self) -> None:
        for progress in self.scheduler.step():
            if progress.error is not None:
                raise progress.error
            self.tokens[progress.request] += progress.tokens
            if progress.finish_reason is not None:
                self.reasons[progress.request] = progress.finish_reason

    def run(self) -> dict[int, list[int]]:
        while self.scheduler.busy:
            self.step()
        return self.tokens


class Marks(StepClock):
    """A second between two marks."""

    now = 0.0

    def mark(self) -> float:
        self.now += 1.0
        return self.now

    def seconds(self, first: float, last: float) -> float:
        return last - first
