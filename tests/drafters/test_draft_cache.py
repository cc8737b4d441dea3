"""What a draft model's cache holds after rounds of drafting and verification."""

from __future__ import annotations

import random

import pytest

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_drafters.easyspec import EasySpecConfig, EasySpecDrafter
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from spec_sdk_growth.auto import AutoConfig, AutoGrowth
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_models import TinyModels

MAKERS = {
    "chain": lambda: DraftModelDrafter(DraftModelConfig(), TinyModels()),
    "tree": lambda: DraftModelDrafter(DraftModelConfig(growth=AutoGrowth(AutoConfig(width=3))), TinyModels()),
    "without some layers": lambda: DraftModelDrafter(
        DraftModelConfig(runner=LayerSkipRunner(LayerSkipConfig(skip=[2]))), TinyModels()
    ),
    "calibrated": lambda: easyspec(calibrate=True),
    "uncalibrated": lambda: easyspec(calibrate=False),
}


def easyspec(calibrate: bool) -> EasySpecDrafter:
    runner = LayerParallelRunner(LayerParallelConfig(size=3, calibrate=calibrate))
    return EasySpecDrafter(EasySpecConfig(growth=AutoGrowth(AutoConfig(width=3)), runner=runner), TinyModels())


def drift_after(name: str, rounds: int, seed: int) -> float:
    """Largest difference between the draft cache and a plain prefill of the same tokens, after random acceptances."""
    drafter, accept = MAKERS[name](), random.Random(seed)
    request = request_for([5, 6, 7, 8], reference_sampler(SamplingParams()), seed)
    drafter.start([request.view])
    for _ in range(rounds):
        (tree,) = drafter.propose([request.view], [Budget(4)])
        path = tree.path_to(accept.randrange(tree.size))
        committed = [*(tree.token_N[node] for node in path[1:]), accept.randrange(VOCABULARY)]
        request.tokens.extend(committed)
        drafter.observe([request.view], [committed])
    # one more proposal feeds what was committed last; what it drafts is not committed
    drafter.propose([request.view], [Budget(1)])
    session = drafter.session
    assert session.tokens() == list(request.tokens)
    scratch = drafter.models.session(drafter.models.draft())
    scratch.prefill(0, request.tokens)
    length, layers = session.length(), session.executor.layers
    ours, plain = session.cache, scratch.cache
    assert isinstance(ours, KVCache) and isinstance(plain, KVCache)
    return max(
        float((drafted - prefilled)[layer, 0, :, :length].abs().max())
        for layer in range(layers)
        for drafted, prefilled in ((ours.k_LSGCD, plain.k_LSGCD), (ours.v_LSGCD, plain.v_LSGCD))
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["chain", "tree", "without some layers", "calibrated"])
def test_the_cache_equals_a_plain_prefill(name: str, seed: int) -> None:
    assert drift_after(name, 30, seed) < 1e-4


def test_without_bonus_calibration_it_drifts() -> None:
    assert drift_after("uncalibrated", 30, 0) > 1e-2
