"""Greedy output of every lossless pipeline against plain decoding, on the real model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.session import Session
from spec_sdk.ops.pass_inputs import RequestRows
from spec_sdk.pipeline import Pipeline
from spec_sdk.testing import plain_logits, step_beyond_rounding
from spec_sdk.tree import TokenTree
from tests.support.real_pipelines import bench_prompts, pipeline_of, tokens_of

LOSSLESS = [
    "sd_chain",
    "prompt_lookup",
    "lookahead",
    "easyspec_chain",
    "easyspec_paper",
    "specinfer_tree",
    "layer_skip_tree",
]
KINDS = ("prompt_lookup", "easyspec_paper", "layer_skip_tree")
"""A guesser, a draft model in a group of layers, and the target's own cache. On a tiny model all are tried always
(``test_tiny_pipelines.py``).
"""
Scale = Callable[[int, int], int]


def with_some(*always: str) -> list[Any]:
    """The lossless pipelines, of which only these are tried in the first tier."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.full) for name in LOSSLESS]


@pytest.fixture(scope="module")
def vanilla() -> Pipeline:
    return pipeline_of("pipeline=vanilla", "model.dtype=float32")


@pytest.fixture(scope="module")
def expected(vanilla: Pipeline, scale: Scale) -> list[tuple[list[int], list[int]]]:
    """Prompts, and what plain decoding answers."""
    # the second repeats itself within a few tokens, and so a look-up hits
    prompts = bench_prompts(vanilla, scale(2, 40), longest=scale(600, 4000))[scale(1, 0) :]
    return [(prompt, tokens_of(vanilla, prompt, scale(16, 32))) for prompt in prompts]


@pytest.mark.parametrize("name", with_some(*KINDS))
def test_float32_equals_vanilla_token_by_token(
    name: str, expected: list[tuple[list[int], list[int]]], scale: Scale
) -> None:
    pipeline = pipeline_of(f"pipeline={name}", "model.dtype=float32")
    assert pipeline.guarantee == "exact"
    accepted = 0
    for prompt, tokens in expected:
        events: list[dict[str, object]] = []
        assert tokens_of(pipeline, prompt, scale(16, 32), emit=events.append) == tokens
        accepted += sum(int(str(event["accepted"])) for event in events if event["event"] == "cycle")
    # a pipeline that never accepts a drafted token would pass without having proved anything
    assert accepted > 0


@pytest.mark.parametrize("name", with_some("easyspec_paper"))
def test_bfloat16_differs_by_rounding_alone(name: str, scale: Scale) -> None:
    """Where bfloat16 rounds a wide pass differently, near ties may fall the other way; nothing else may happen."""
    pipeline = pipeline_of(f"pipeline={name}", "model.dtype=bfloat16")
    for prompt in bench_prompts(pipeline, scale(1, 40), longest=scale(600, 4000)):
        assert step_of_a_fault(pipeline, prompt, scale(16, 64)) is None


TREE, COMMIT = RequestRows.tree, Session.commit


def sees_no_ancestors(
    slot: int, prefix: int, token_N: Sequence[int], depth_N: Sequence[int], end_N: Sequence[int]
) -> RequestRows:
    ends = [node + 1 for node in range(len(end_N))]
    return dataclasses.replace(TREE(slot, prefix, token_N, depth_N, end_N), key_end=ends)


def sees_the_future(
    slot: int, prefix: int, token_N: Sequence[int], depth_N: Sequence[int], end_N: Sequence[int]
) -> RequestRows:
    size = len(end_N)
    return dataclasses.replace(TREE(slot, prefix, token_N, depth_N, end_N), key_start=[0] * size, key_end=[size] * size)


def commits_keys_of_zero(session: Session, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
    """The pending token's key is kept, those of accepted tokens are not."""
    lengths = [session.length(slot) for slot in slots]
    COMMIT(session, slots, paths)
    assert isinstance(session.cache, KVCache)
    for slot, length, path in zip(slots, lengths, paths, strict=True):
        session.cache.k_LSGCD[:, slot, :, length + 1 : length + len(path)] = 0


FAULTS = {
    "ancestors hidden": (RequestRows, "tree", staticmethod(sees_no_ancestors)),
    "future nodes visible": (RequestRows, "tree", staticmethod(sees_the_future)),
    "keys of accepted tokens zeroed": (Session, "commit", commits_keys_of_zero),
}


def test_bfloat16_does_not_excuse_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the test above: it can fail. Each fault is planted in every pass over a tree, and in no plain one."""
    pipeline = pipeline_of("pipeline=prompt_lookup", "model.dtype=bfloat16")
    text = "Say this sentence again, twice: the cat sat on the mat, and the cat slept."
    prompt = pipeline.tokenizer.chat([{"role": "user", "content": text}])
    assert step_of_a_fault(pipeline, prompt, 24) is None
    for name, fault in FAULTS.items():
        with monkeypatch.context() as patch:
            patch.setattr(*fault)
            assert step_of_a_fault(pipeline, prompt, 24) is not None, name


def step_of_a_fault(pipeline: Pipeline, prompt: list[int], max_new_tokens: int) -> int | None:
    """The first step of a run that rounding does not explain, too early an end included."""
    recorder = Recorder(pipeline.verifier)
    tokens = tokens_of(dataclasses.replace(pipeline, verifier=recorder), prompt, max_new_tokens)
    stops = [i for i, token in enumerate(tokens) if token in pipeline.tokenizer.stop_ids]
    if (stops or [max_new_tokens - 1])[0] != len(tokens) - 1:
        return len(tokens)
    own_NV = torch.stack([recorder.logits[(*prompt, *tokens[:i])] for i in range(len(tokens))])
    return step_beyond_rounding(tokens, own_NV, plain_logits(pipeline.models.target.executor, prompt, tokens))


class Recorder(Verifier):
    """Another verifier, with the logits [V] that it decided on kept, by the tokens that they follow."""

    name = "recorder"
    guarantee = "exact"

    def __init__(self, inner: Verifier) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self.logits: dict[tuple[int, ...], torch.Tensor] = {}

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = self.inner.verify_one(tree, logits_NV, request)
        for length, node in enumerate(verdict.path):
            path = (tree.token_N[i] for i in verdict.path[1 : length + 1])
            self.logits[(*request.tokens, *path)] = logits_NV[node].clone()
        return verdict


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
