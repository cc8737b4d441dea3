"""The first-party drafters that run a model, on tiny random ones: they conform, and their caches are mended rightly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Growth, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing import check_drafter
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_drafters.easyspec import EasySpecConfig, EasySpecDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_growth.auto import AutoConfig, AutoGrowth
from spec_sdk_growth.beam import BeamConfig, BeamGrowth
from spec_sdk_growth.dynamic import DynamicConfig, DynamicGrowth
from spec_sdk_growth.static import StaticConfig, StaticGrowth
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()


def draft_model(growth: Growth) -> Drafter:
    return DraftModelDrafter(DraftModelConfig(growth=growth), MODELS)


def easyspec(growth: Growth, calibrate: bool = True) -> Drafter:
    runner = LayerParallelRunner(LayerParallelConfig(size=3, calibrate=calibrate))
    return EasySpecDrafter(EasySpecConfig(growth=growth, runner=runner), MODELS)


DISTINCT = "without_replacement"
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "top-1 chain": lambda: draft_model(AutoGrowth(AutoConfig(children="top_k"))),
    "sampled chain": lambda: draft_model(AutoGrowth(AutoConfig(children="with_replacement"))),
    "top-k tree": lambda: draft_model(AutoGrowth(AutoConfig(width=3, children="top_k"))),
    "dynamic tree": lambda: draft_model(DynamicGrowth(DynamicConfig(width=3, max_nodes=7))),
    "static top-k tree": lambda: draft_model(StaticGrowth(StaticConfig(widths=[3, 2, 1]))),
    "tree of distinct samples": lambda: draft_model(StaticGrowth(StaticConfig([3, 2, 1], DISTINCT))),
    "tree of repeated samples": lambda: draft_model(StaticGrowth(StaticConfig([4, 2, 1], "with_replacement"))),
    "EasySpec auto tree": lambda: easyspec(AutoGrowth(AutoConfig(width=3))),
    "EasySpec top-k tree": lambda: easyspec(BeamGrowth(BeamConfig(width=3))),
    "EasySpec dynamic tree": lambda: easyspec(DynamicGrowth(DynamicConfig(width=3))),
    "EasySpec sampled tree": lambda: easyspec(StaticGrowth(StaticConfig([3, 1], DISTINCT))),
    "EasySpec without calibration": lambda: easyspec(StaticGrowth(StaticConfig([2, 1], DISTINCT)), calibrate=False),
}


GROWN_ALIKE = ("EasySpec top-k tree", "EasySpec dynamic tree")
"""Trees that grow as the draft model's do, by a runner that other trees are tried with."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name in GROWN_ALIKE)) for name in DRAFTERS]
)
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
    used.start([request.view])
    for cycle in range(8):
        state = request.rng.get_state()
        (tree,) = used.propose([request.view], [Budget(4)])
        fresh, again = DRAFTERS[name](), request_for(request.tokens, sampler, 0)
        fresh.start([again.view])
        again.rng.set_state(state)
        (fresh_tree,) = fresh.propose([again.view], [Budget(4)])
        assert tree.token_N == fresh_tree.token_N, f"cycle {cycle}"
        for draws, fresh_draws in zip(tree.draws_N, fresh_tree.draws_N, strict=True):
            for draw, fresh_draw in zip(draws, fresh_draws, strict=True):
                if draw.q_V is not None and fresh_draw.q_V is not None:
                    torch.testing.assert_close(draw.q_V, fresh_draw.q_V, atol=1e-4, rtol=1e-3)
        path = tree.path_to(accept.choice([0, tree.size - 1, accept.randrange(tree.size)]))
        committed = [*(tree.token_N[node] for node in path[1:]), accept.randrange(VOCABULARY)]
        request.tokens.extend(committed)
        used.observe([request.view], [committed])


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_answers_are_those_of_plain_decoding(name: str) -> None:
    def answer(make_drafter: Callable[[], Drafter]) -> list[int]:
        request = request_for([30, 31, 32, 40], ReferenceSampler(None, SamplingParams()), 0, max_new_tokens=40)
        session = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops()))
        scheduler = Scheduler(session, make_drafter(), MultiStep(None), FixedPolicy(FixedConfig(depth=4)))
        return [token for tokens in scheduler.run(request) for token in tokens]

    assert answer(DRAFTERS[name]) == answer(lambda: NoDraft(None, MODELS))
