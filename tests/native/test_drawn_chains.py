"""A chain that is drawn in one native call is the one that is drawn level by level, by the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.errors import UnusableLogits
from spec_sdk.model.context_vocabulary import with_lowest_tokens
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.session import Session
from spec_sdk.ops.grown_paths import PathDraws, ProbablePaths
from spec_sdk.tree import DraftDistribution, TreeBuilder
from spec_sdk_backends.native.growing import NativePathGrower
from spec_sdk_growth.auto import AutoGrowth
from spec_sdk_growth.beam import BeamGrowth
from spec_sdk_growth.options import tempered
from spec_sdk_growth.static import StaticGrowth
from spec_sdk_samplers.reference import ReferenceSampler
from tests.native.test_growing import (
    SIZES,
    chains,
    head_session,
    levels_fed,
    native_executor,
    pairs,
)
from tests.support.grown_trees import Fed, fed_and_grown, fed_to_both
from tests.support.real_pipelines import bench_prompts, pipeline_of
from tests.support.real_pipelines import tokens_of as tokens_of_pipeline


def row_of(logits_V: torch.Tensor) -> torch.Tensor:
    return logits_V


UNIFORMS = ((0.3, 0.9, 0.05, 0.6), (0.999,), (0.0, 0.5))
PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.4, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=7, min_p=0.01),
)


def drawn_plans(vocabulary: int) -> list[PathDraws]:
    return [
        PathDraws(uniforms, params, temperature, vocabulary)
        for uniforms in UNIFORMS
        for params, temperature in zip(PARAMS, (1.0, 0.7, 2.0), strict=True)
    ]


def check_the_same(make: Callable[[], Session], fed: Callable[[Session, int], Fed], vocabulary: int) -> None:
    """Chains behind rounds of text, in a session and, level by level, in another of the same model."""
    slot = 1
    for draws in drawn_plans(vocabulary):
        ahead, plain = make(), make()
        sampler = ReferenceSampler(None, draws.shaping)  # type: ignore[arg-type]
        for count in (5, 1):
            paths = ProbablePaths.drawn(draws)
            tokens, grown, logits = fed_to_both(ahead, plain, slot, fed(plain, count), paths)
            assert len(grown.levels) == len(draws.uniforms) - 1
            tree = TreeBuilder(tokens[-1])
            for number, uniform in enumerate(draws.uniforms):
                found = grown.root if not number else grown.levels[number - 1].logits
                assert torch.equal(found.full_KV, logits.full_KV)
                row_V = logits.within(vocabulary).full_KV[0]
                (q_V,) = sampler.probabilities(tempered(row_V, draws.temperature)[None])
                token = sampler.draw(q_V, uniform)
                assert found.drawn_KW == ((token,),)
                assert (found.probability_K or (0,))[0] == pytest.approx(float(q_V[token]), rel=1e-5)
                own = found.within(vocabulary)
                assert own.drawn_KW == ((token,),)
                assert torch.equal(DraftDistribution(own.row(0), row_of).logits_V, row_V)
                if number + 1 < len(draws.uniforms):
                    level = grown.levels[number]
                    assert (list(level.token_K), list(level.parent_K)) == ([token], [number])
                    tree.add(number, token, "chosen")
                    (logits,) = plain.grow([slot], [tree], [1])
            cached = plain.length(slot) + len(draws.uniforms) - 1
            for name in KVCache.storages:
                one, other = (getattr(session.cache, name)[:, slot, :, :cached] for session in (ahead, plain))
                assert torch.equal(one, other)


@pytest.mark.parametrize("weights", ["dense", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["plain", "normed residual", "normed output", "all tokens"])
@torch.no_grad()
def test_a_heads_chain(name: str, dtype: torch.dtype, weights: str, tmp_path: Path) -> None:
    check_the_same(lambda: head_session(tmp_path / "head", name, dtype, weights), pairs(), SIZES.V)


@torch.no_grad()
def test_the_tokens_of_a_text_are_drawn_in_the_order_of_tokens(tmp_path: Path) -> None:
    def make() -> Session:
        return head_session(tmp_path / "head", "all tokens", torch.float32, "dense", few_tokens=20)

    check_the_same(make, pairs(), SIZES.V)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_a_draft_models_chain(dtype: torch.dtype) -> None:
    executor = native_executor("smollm", dtype, "int4, rows in 8 bits")
    check_the_same(lambda: Session(executor), chains(), executor.vocabulary)
    # tokens that a target lacks are not drawn
    check_the_same(lambda: Session(executor), chains(), executor.vocabulary - 9)
    check_the_same(lambda: Session(with_lowest_tokens(executor, 30, "tests")), chains(), 25)


@torch.no_grad()
def test_what_cannot_be_drawn() -> None:
    executor = native_executor("smollm", torch.float32, "dense")
    draws = PathDraws((0.5, 0.5), PARAMS[0], 1.0, executor.vocabulary)
    # at temperature 0 whoever asks decides among equals
    greedy = replace(draws, shaping=SamplingParams())
    assert fed_and_grown(Session(executor), 0, [5], ProbablePaths.drawn(greedy)).root.drawn_KW is None
    executor.decoder.final_norm_M.fill_(torch.nan)
    with pytest.raises(UnusableLogits):
        fed_and_grown(Session(executor), 0, [5], ProbablePaths.drawn(draws))


SAMPLED = ("sampling.temperature=1", "sampling.seed=3", "deterministic=true")


@pytest.mark.parametrize(
    "overrides",
    [
        ("pipeline=sd_chain",),
        ("pipeline=sd_chain", "model.weights=auto", "sampling.top_p=0.9", "sampling.temperature=0.8"),
        ("pipeline=sd_chain", "drafter.temperature=0.6", "drafter.growth=static", "drafter.widths=[1]"),
        ("pipeline=eagle_tree", "policy=fixed", "drafter.width=1", "drafter.growth=beam", "sampling.top_k=40"),
        ("pipeline=easyspec_paper", "drafter.width=1"),
    ],
    ids=" ".join,
)
def test_a_pipeline_draws_the_same_chains(overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no growth said its shape. The verdicts' random numbers are the same, too."""
    calls = levels_fed(monkeypatch)
    pipeline = pipeline_of(*SAMPLED, *overrides)
    prompts = bench_prompts(pipeline, 2, longest=400)
    drafted = [tokens_of_pipeline(pipeline, prompt, 24) for prompt in prompts]
    assert sum(calls) > 6
    del calls[:]
    for growth in (AutoGrowth, BeamGrowth, StaticGrowth):
        monkeypatch.setattr(growth, "fixed_shape", lambda self, *arguments: None)
    assert [tokens_of_pipeline(pipeline, prompt, 24) for prompt in prompts] == drafted and not calls


def test_rules_in_torch_come_with_draws_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = levels_fed(monkeypatch)
    pipeline = pipeline_of(*SAMPLED, "pipeline=sd_chain", "sampler.kernels=torch")
    (prompt,) = bench_prompts(pipeline, 1, longest=400)
    assert tokens_of_pipeline(pipeline, prompt, 12) and not calls


def test_a_refusal_takes_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipeline_of(*SAMPLED, "pipeline=sd_chain")
    (prompt,) = bench_prompts(pipeline, 1, longest=400)
    drafted = tokens_of_pipeline(pipeline, prompt, 24)

    def refuses(self: NativePathGrower, *arguments: Any) -> None:
        return None

    monkeypatch.setattr(NativePathGrower, "__call__", refuses)
    assert tokens_of_pipeline(pipeline, prompt, 24) == drafted
