"""A prompt of one token has no states yet: a drafter that taps the target is given no rows, of every layer it named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Request, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.target import Target
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing import TableModel, check_drafter
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels


class Tapping(NoDraft):
    """Looks up its layers without asking whether they are there."""

    taps = (1, 3)
    drafts = True

    def __init__(self) -> None:
        super().__init__(None, TinyModels())
        self.given: list[tuple[int, Mapping[int, torch.Tensor]]] = []

    def start(self, requests: Sequence[Request], prompt_hidden: Any = None) -> None:
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            self.given.append((len(request.tokens), {layer: hidden[layer] for layer in self.taps}))

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)


def targets() -> list[tuple[Target, int]]:
    decoder = tiny_decoder("smollm", 0)
    return [(Session(TorchExecutor(decoder, Ops())), decoder.config.hidden_size), (TableModel(6, 0), 6)]


@pytest.mark.parametrize("which", [0, 1], ids=["session", "table"])
def test_no_rows_of_every_layer(which: int) -> None:
    target, width = targets()[which]
    drafter = Tapping()
    request = request_for([4], ReferenceSampler(None, SamplingParams()), 0, max_new_tokens=3)
    for _ in Scheduler(target, drafter, MultiStep(None), FixedPolicy(FixedConfig(depth=2))).run(request):
        pass
    ((length, hidden),) = drafter.given
    assert length == 1
    assert {layer: states_NM.shape for layer, states_NM in hidden.items()} == {1: (0, width), 3: (0, width)}


def test_the_kit_gives_them_too() -> None:
    check_drafter(Tapping, vocabulary=6, target=TableModel(6, 0), prompts=[[4]])
