"""In bfloat16 a batch's passes round differently from a single request's; nothing else may happen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.testing import plain_logits, step_beyond_rounding
from tests.conftest import FULL
from tests.pipelines.test_greedy_losslessness import LOSSLESS, Recorder
from tests.support.real_pipelines import pipeline_of

TEXTS = (
    "Say this sentence again, twice: the cat sat on the mat, and the cat slept.",
    "Why is the sky blue?",
    "Count from one to twenty in words, then count from one to twenty in words again.",
    "Write the first lines of a letter to a friend who has moved to another town.",
)
Scale = Callable[[int, int], int]


@pytest.mark.parametrize("name", LOSSLESS if FULL else ("prompt_lookup", "easyspec_paper"))
def test_a_request_in_a_batch_differs_by_rounding_alone(name: str, scale: Scale) -> None:
    pipeline = pipeline_of(f"pipeline={name}", "model.dtype=bfloat16")
    prompts = [pipeline.tokenizer.chat([{"role": "user", "content": text}]) for text in TEXTS]
    recorder = Recorder(pipeline.verifier)
    engine = dataclasses.replace(pipeline, verifier=recorder).new_engine(len(prompts))
    answers: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        engine.add(TokenRequest(prompt, request_id=i, max_new_tokens=scale(12, 48), ignore_eos=True))
    while engine.busy:
        for progress in engine.step():
            assert progress.error is None
            answers[progress.request] += progress.tokens
    for prompt, tokens in zip(prompts, answers.values(), strict=True):
        own_NV = torch.stack([recorder.logits[(*prompt, *tokens[:i])] for i in range(len(tokens))])
        plain_WNV = plain_logits(pipeline.models.target.executor, prompt, tokens)
        assert len(tokens) == scale(12, 48) and step_beyond_rounding(tokens, own_NV, plain_WNV) is None
