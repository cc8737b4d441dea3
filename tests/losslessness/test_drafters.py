"""The first-party drafters that run a model, on tiny random ones: they conform, and their caches are mended rightly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, SamplingParams
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.scheduler import Scheduler
from spec_sdk.testing import check_drafter
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_drafters.easyspec import EasySpecConfig, EasySpecDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "top-1 chain": lambda: DraftModelDrafter(DraftModelConfig(children="top_k"), MODELS),
    "sampled chain": lambda: DraftModelDrafter(DraftModelConfig(children="with_replacement"), MODELS),
    "top-k tree": lambda: DraftModelDrafter(DraftModelConfig(width=3, children="top_k"), MODELS),
    "dynamic tree": lambda: DraftModelDrafter(DraftModelConfig(growth="dynamic", width=3, max_nodes=7), MODELS),
    "static top-k tree": lambda: DraftModelDrafter(DraftModelConfig(growth="static", widths=[3, 2, 1]), MODELS),
    "tree of distinct samples": lambda: DraftModelDrafter(
        DraftModelConfig(growth="static", widths=[3, 2, 1], children="without_replacement"), MODELS
    ),
    "tree of repeated samples": lambda: DraftModelDrafter(
        DraftModelConfig(growth="static", widths=[4, 2, 1], children="with_replacement"), MODELS
    ),
    "EasySpec auto tree": lambda: EasySpecDrafter(EasySpecConfig(width=3, size=3), MODELS),
    "EasySpec top-k tree": lambda: EasySpecDrafter(EasySpecConfig(growth="beam", width=3, size=3), MODELS),
    "EasySpec dynamic tree": lambda: EasySpecDrafter(EasySpecConfig(growth="dynamic", width=3, size=3), MODELS),
    "EasySpec sampled tree": lambda: EasySpecDrafter(
        EasySpecConfig(growth="static", widths=[3, 1], size=3, children="without_replacement"), MODELS
    ),
    "EasySpec without calibration": lambda: EasySpecDrafter(
        EasySpecConfig(growth="static", widths=[2, 1], size=3, children="without_replacement", calibrate=False), MODELS
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_conformance(name: str, scale: Callable[[int, int], int]) -> None:
    prompts = [[5], [9, 3, 3, 60, 17, 9, 3]]
    check_drafter(DRAFTERS[name], VOCABULARY, prompts=prompts, draws=scale(60, 2000))


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "EasySpec without calibration"])
def test_a_drafter_in_use_drafts_as_a_fresh_one_would(name: str) -> None:
    """After cycles of all kinds, its cache must hold what prefilling the same prefix would have put there.

    EasySpec's layer-parallel passes leave imprecise K and V behind; bonus calibration has to replace them.
    """
    sampler = ReferenceSampler(None, SamplingParams(temperature=1.0))
    accept = random.Random(name)
    used, request = DRAFTERS[name](), request_for([4, 8, 15, 16, 23], sampler, 0)
    used.start(request)
    for cycle in range(8):
        state = request.rng.get_state()
        tree = used.propose(request, Budget(4))
        fresh, again = DRAFTERS[name](), request_for(request.tokens, sampler, 0)
        fresh.start(again)
        again.rng.set_state(state)
        fresh_tree = fresh.propose(again, Budget(4))
        assert tree.token_N == fresh_tree.token_N, f"cycle {cycle}"
        for draws, fresh_draws in zip(tree.draws_N, fresh_tree.draws_N, strict=True):
            for draw, fresh_draw in zip(draws, fresh_draws, strict=True):
                if draw.q_V is not None and fresh_draw.q_V is not None:
                    torch.testing.assert_close(draw.q_V, fresh_draw.q_V, atol=1e-4, rtol=1e-3)
        path = tree.path_to(accept.choice([0, tree.size - 1, accept.randrange(tree.size)]))
        committed = [*(tree.token_N[node] for node in path[1:]), accept.randrange(VOCABULARY)]
        request.tokens.extend(committed)
        used.observe(request, committed)


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_answers_are_those_of_plain_decoding(name: str) -> None:
    def answer(make_drafter: Callable[[], Drafter]) -> list[int]:
        request = request_for([30, 31, 32, 40], ReferenceSampler(None, SamplingParams()), 0, max_new_tokens=40)
        session = Session(tiny_decoder("smollm", 0), Ops())
        scheduler = Scheduler(session, make_drafter(), MultiStep(None), FixedPolicy(FixedConfig(depth=4)))
        return [token for tokens in scheduler.run(request, lambda event: None) for token in tokens]

    assert answer(DRAFTERS[name]) == answer(lambda: NoDraft(None, MODELS))
