"""The default model against transformers, with the same weights.

That those are what transformers' own loader reads is a test of ``tests/checkpoints/test_default_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.session import Session
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree
from tests.support.default_gguf import default_gguf
from tests.support.real_pipelines import bench_prompts, pipeline_of, tokens_of


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """Transformers' model of the configuration that it reads from the GGUF."""
    file = default_gguf(tmp_path_factory)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    checkpoint = open_checkpoint("smollm2-135m-instruct")
    weights = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.fixture(scope="module")
def vanilla() -> Pipeline:
    return pipeline_of("pipeline=vanilla", "model.dtype=float32", "model.target=smollm2-135m-instruct")


@pytest.fixture(scope="module")
def unpacked() -> Pipeline:
    """Linear layers multiplied by the library, in the order of summation, that transformers uses."""
    return pipeline_of("pipeline=vanilla", "model.dtype=float32", "backend=cpu", "backend.pack_weights=false")


@pytest.fixture(scope="module")
def prompts(vanilla: Pipeline, scale: Callable[[int, int], int]) -> list[list[int]]:
    return bench_prompts(vanilla, scale(2, 20), longest=scale(300, 10000))


def test_logits_equal_transformers(
    reference: PreTrainedModel, unpacked: Pipeline, vanilla: Pipeline, prompts: list[list[int]]
) -> None:
    """Within 1e-4 as transformers computes them. Packed layers round otherwise: within 2e-5 of the largest logit."""
    for prompt in prompts:
        with torch.no_grad():
            expected_NV = reference(torch.tensor([prompt])).logits[0]
        for pipeline, most in ((unpacked, 1e-4), (vanilla, 2e-5 * float(expected_NV.abs().max()))):
            session = Session(pipeline.models.target.executor)
            whole_NV = session.score([0], [TokenTree.chain(prompt[0], prompt[1:])])[0].logits_NV
            assert (whole_NV - expected_NV).abs().max() < most
            session.prefill(0, prompt[:-6])
            last_NV = session.score([0], [TokenTree.chain(prompt[-6], prompt[-5:])])[0].logits_NV
            assert (last_NV - expected_NV[-6:]).abs().max() < most


@pytest.mark.full
def test_greedy_output_equals_generate(
    reference: Any, vanilla: Pipeline, prompts: list[list[int]], scale: Callable[[int, int], int]
) -> None:
    new_tokens = scale(32, 64)
    stop_ids = sorted(vanilla.tokenizer.stop_ids)
    greedy = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, eos_token_id=stop_ids, pad_token_id=0)
    for prompt in prompts:
        with torch.no_grad():
            expected = reference.generate(torch.tensor([prompt]), greedy)[0, len(prompt) :].tolist()
        assert tokens_of(vanilla, prompt, new_tokens) == expected


def test_the_default_answer_reads_like_an_answer(vanilla: Pipeline) -> None:
    prompt = vanilla.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    tokens = tokens_of(vanilla, prompt, 40)
    assert tokens[-1] in vanilla.tokenizer.stop_ids
    answer = vanilla.tokenizer.decode(tokens)
    assert "Paris" in answer and "<|" not in answer
