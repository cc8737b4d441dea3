"""Greedy output of every lossless pipeline against plain decoding, on the real model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.pipeline import Pipeline
from spec_sdk.testing import first_divergence_is_a_tie
from spec_sdk.tree import TokenTree
from tests.support.real_pipelines import bench_prompts, pipeline_of, tokens_of

LOSSLESS = ["sd_chain", "prompt_lookup", "easyspec_chain", "easyspec_tree", "specinfer_tree"]
Scale = Callable[[int, int], int]


@pytest.fixture(scope="module")
def vanilla() -> Pipeline:
    return pipeline_of("pipeline=vanilla", "model.dtype=float32")


@pytest.fixture(scope="module")
def expected(vanilla: Pipeline, scale: Scale) -> list[tuple[list[int], list[int]]]:
    """Prompts, and what plain decoding answers."""
    prompts = bench_prompts(vanilla, scale(4, 40), longest=scale(600, 4000))
    return [(prompt, tokens_of(vanilla, prompt, scale(24, 32))) for prompt in prompts]


@pytest.mark.parametrize("name", LOSSLESS)
def test_float32_equals_vanilla_token_by_token(
    name: str, expected: list[tuple[list[int], list[int]]], scale: Scale
) -> None:
    pipeline = pipeline_of(f"pipeline={name}", "model.dtype=float32")
    assert pipeline.guarantee == "exact"
    accepted = 0
    for prompt, tokens in expected:
        events: list[dict[str, object]] = []
        assert tokens_of(pipeline, prompt, scale(24, 32), emit=events.append) == tokens
        accepted += sum(int(str(event["accepted"])) for event in events if event["event"] == "cycle")
    # a pipeline that never accepts a drafted token would pass without having proved anything
    assert accepted > 0


@pytest.mark.parametrize("name", LOSSLESS)
def test_bfloat16_first_diverges_at_a_tie(name: str, scale: Scale) -> None:
    """Where bfloat16 rounds a wide pass differently, only tokens of practically equal logits may be exchanged."""
    vanilla = pipeline_of("pipeline=vanilla", "model.dtype=bfloat16")
    pipeline = pipeline_of(f"pipeline={name}", "model.dtype=bfloat16")
    for prompt in bench_prompts(vanilla, scale(3, 40), longest=scale(600, 4000)):
        (plain, narrow), (speculated, wide) = (recorded(p, prompt, scale(24, 64)) for p in (vanilla, pipeline))
        if plain == speculated:
            continue
        at = next(i for i, pair in enumerate(zip(plain, speculated, strict=False)) if pair[0] != pair[1])
        prefix = (*prompt, *plain[:at])
        assert first_divergence_is_a_tie(plain, speculated, narrow[prefix], wide[prefix])


class Recorder(Verifier):
    """Another verifier, with the logits [V] that it decided on kept, by the tokens that they follow."""

    name = "recorder"
    guarantee = "exact"

    def __init__(self, inner: Verifier) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self.logits: dict[tuple[int, ...], torch.Tensor] = {}

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = self.inner.verify(tree, logits_NV, request)
        for length, node in enumerate(verdict.path):
            path = (tree.token_N[i] for i in verdict.path[1 : length + 1])
            self.logits[(*request.tokens, *path)] = logits_NV[node].clone()
        return verdict


def recorded(
    pipeline: Pipeline, prompt: list[int], max_new_tokens: int
) -> tuple[list[int], dict[tuple[int, ...], torch.Tensor]]:
    """The tokens of a run, and the logits of its own passes."""
    recorder = Recorder(pipeline.verifier)
    tokens = tokens_of(dataclasses.replace(pipeline, verifier=recorder), prompt, max_new_tokens)
    return tokens, recorder.logits


def test_the_relaxed_pipelines_say_so_and_lambda_0_is_vanilla(vanilla: Pipeline, scale: Scale) -> None:
    prompt = vanilla.tokenizer.chat([{"role": "user", "content": "Count from one to forty in words. " * 8}])
    expected = tokens_of(vanilla, prompt, scale(16, 64))
    for name in ("alspec", "alspec_easyspec_tree"):
        overrides = (f"pipeline={name}", "predictor.size=16", "model.dtype=float32")
        pipeline = pipeline_of(*overrides, "attention_verifier.threshold=0")
        assert pipeline.guarantee == "relaxed"
        events: list[dict[str, object]] = []
        assert tokens_of(pipeline, prompt, scale(16, 64), emit=events.append) == expected
        hits = [event["attention"]["hit"] for event in events if event["event"] == "cycle"]  # type: ignore[index]
        assert all(hit is False for row in hits for hit in row)


def test_all_three_levels_speculate_at_once(scale: Scale) -> None:
    """One run in which drafted tokens are accepted and attention predictions hit and miss."""
    overrides = ("pipeline=alspec_easyspec_tree", "predictor.size=16", "attention_verifier.threshold=0.3")
    pipeline = pipeline_of(*overrides, "model.dtype=float32")
    prompt = pipeline.tokenizer.chat([{"role": "user", "content": "Count from one to forty in words. " * 8}])
    events: list[dict[str, object]] = []
    tokens_of(pipeline, prompt, scale(24, 64), emit=events.append)
    cycles = [event for event in events if event["event"] == "cycle"]
    hits = {hit for event in cycles for hit in event["attention"]["hit"]}  # type: ignore[index]
    assert hits == {True, False}
    assert sum(int(str(event["accepted"])) for event in cycles) > 0
