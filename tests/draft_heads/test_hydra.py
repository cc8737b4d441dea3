"""The drafter ``hydra``: it conforms, its states are mended rightly, and no answer changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters.hydra import HydraConfig, HydraDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from tests.draft_heads.test_drafter import OPTIONS, PROMPTS, Served, answers, greedy_answer, pipeline_of, target_session
from tests.draft_heads.test_losslessness import (
    CHAINS,
    PROMPT,
    SAMPLINGS,
    TREES,
    VERIFIERS,
    VOCABULARY,
    Granted,
    TableModels,
)
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support import tiny_checkpoints
from tests.support.tiny_heads import HeadSizes, random_ends
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()
TABLE = HeadSizes(V=VOCABULARY, W=VOCABULARY, M=4, S=4, heads=2, kv_heads=1, head_dim=4, mlp=16)
LAYOUTS = ("Hydra", "Hydra++")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("hydra")
    return {name: write_hydra(directory / name, prefix=name == "Hydra++") for name in LAYOUTS}


def drafter_of(heads: Path, models: TinyModels = MODELS, **options: Any) -> HydraDrafter:
    """As YAML describes it."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "hydra", "checkpoint": str(heads), **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, HydraDrafter)
    return drafter


def same_draws(first: Any, second: Any) -> None:
    """Two trees of equal tokens, drawn from equal distributions."""
    assert first.token_N == second.token_N
    for draws, others in zip(first.draws_N, second.draws_N, strict=True):
        for draw, other in zip(draws, others, strict=True):
            if draw.q_V is not None and other.q_V is not None:
                torch.testing.assert_close(draw.q_V, other.q_V, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", ["dynamic", "distinct"])
def test_a_drafter_in_use_drafts_as_a_fresh_one_would(options: str, layout: str, heads: dict[str, Path]) -> None:
    used = Served(drafter_of(heads[layout], **OPTIONS[options]), [4, 8, 15, 16, 23], 3)
    for _ in range(4):
        state = used.request.rng.get_state()
        fresh = Served(drafter_of(heads[layout], **OPTIONS[options]), list(used.request.tokens), 0)
        fresh.request.rng.set_state(state)
        (expected,) = fresh.drafter.propose([fresh.request.view], [Budget(4)])
        same_draws(used.cycle(Budget(4)), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_more_depth_than_heads(layout: str, heads: dict[str, Path]) -> None:
    for depth in (1, 3, 9):
        assert Served(drafter_of(heads[layout]), [4, 8, 15], 3).cycle(Budget(depth)).depth == min(depth, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_request_has_no_state_of_the_slots_last_one(layout: str, heads: dict[str, Path]) -> None:
    drafter = drafter_of(heads[layout])
    assert Served(drafter, [4, 8, 15, 16, 23], 3).cycle(Budget(3)).depth == 3
    request = request_for([7], ReferenceSampler(None, SamplingParams()), 0)
    drafter.start([request.view], [target_session().prefill(0, [], drafter.taps)])
    assert drafter.propose([request.view], [Budget(3)])[0].size == 1
    drafter.finish([request.view])
    assert drafter.session.length(0) == 0 and not drafter._unfed.has_any(0)


def test_only_hydra_plus_plus_has_anything_to_catch_up(heads: dict[str, Path]) -> None:
    assert [drafter_of(heads[layout]).catches_up for layout in LAYOUTS] == [False, True]


# --- losslessness ---


@pytest.mark.parametrize(("layout", "options"), [("Hydra", "distinct"), ("Hydra++", "dynamic")])
def test_conformance(layout: str, options: str, heads: dict[str, Path]) -> None:
    check_drafter(
        lambda: drafter_of(heads[layout], **OPTIONS[options]),
        tiny_checkpoints.VOCABULARY,
        prompts=[[5], [9, 3, 3, 60, 17, 9, 3]],
        draws=10,
        target=target_session(),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_answers_are_those_of_plain_decoding(layout: str, heads: dict[str, Path]) -> None:
    # of one token: there is no state before the first step
    for prompt in ([30, 31, 32, 40], [9]):
        plain = greedy_answer(lambda: NoDraft(None, MODELS), prompt)
        assert greedy_answer(lambda: drafter_of(heads[layout], **OPTIONS["dynamic"]), prompt) == plain


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("growth", "verifier"),
    [
        ("drawn chain", "chain_rejection"),
        ("chosen chain", "block_verification"),
        ("drawn paths", "naive_tree"),
        ("drawn without replacement", "multi_step"),
        ("dynamic", "multi_step"),
    ],
)
def test_every_outcome_of_a_cycle(growth: str, verifier: str, layout: str, tmp_path: Path) -> None:
    write_hydra(tmp_path, TABLE, heads=2, prefix=layout == "Hydra++", seed=1)
    models, target = TableModels(random_ends(TABLE, 3, dtype=torch.float32)), TableModel(VOCABULARY, 0)
    config = HydraConfig(str(tmp_path), growth={**CHAINS, **TREES}[growth]())
    policy = Granted(Budget(2, 4))
    for params in SAMPLINGS.values():
        emitted = cycle_distribution(
            target, lambda: HydraDrafter(config, models), VERIFIERS[verifier], params, PROMPT, policy=policy
        )
        length = max(map(len, emitted))
        distribution = completed_distribution(emitted, target, params, PROMPT, length)
        expected = joint_distribution(target, ReferenceSampler(None, params), PROMPT, length)
        assert (distribution - expected).abs().max() < 1e-6


# --- pipelines ---


@pytest.mark.parametrize(
    ("layout", "sampling"), [("Hydra", ()), ("Hydra++", ("sampling.temperature=0.8", "drafter.growth=auto"))]
)
def test_tokens_are_the_same_alone_and_among_others(
    layout: str, sampling: tuple[str, ...], target: Path, heads: dict[str, Path]
) -> None:
    pipeline = pipeline_of(target, "pipeline=hydra_tree", f"drafter.checkpoint={heads[layout]}", *sampling)
    together = answers(pipeline, 3, PROMPTS)
    assert answers(pipeline, 1, PROMPTS[:4])[3] == together[3]
    if not sampling:
        assert answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS) == together


def test_in_a_merged_drafter(target: Path, heads: dict[str, Path]) -> None:
    members = f"{{name: hydra, checkpoint: {heads['Hydra++']}, width: 2}}, {{name: prompt_lookup}}"
    pipeline = pipeline_of(target, "pipeline=specinfer_tree", f"drafter.members=[{members}]")
    assert answers(pipeline, 3, PROMPTS) == answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)
