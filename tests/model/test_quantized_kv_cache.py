"""The KV cache in 8 bits.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim, B requests, N rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spec_sdk import Engine, UserError
from spec_sdk.model.executor import Executor
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.quantized_kv_cache import QuantizedKVCache
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.ops.quantized_pass_cache import rounded
from spec_sdk.testing.static_ops import StaticOps
from spec_sdk.tree import TokenTree
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_whisper import write_whisper

CPU = torch.device("cpu")
TOKENS = [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9, 60, 61]


def test_rows_are_rounded_to_half_a_code() -> None:
    x_BNGD = torch.randn(2, 3, 2, 16) * torch.logspace(-4, 3, 16)
    x_BNGD[0, 0, 0] = 0
    codes, scale = rounded(x_BNGD)
    assert codes.dtype == torch.int8 and scale.shape == (2, 3, 2, 1)
    # half a code, and what the scale's own rounding takes from the largest
    error = (codes.float() * scale.float() - x_BNGD).abs()
    assert (error <= 0.57 * x_BNGD.abs().amax(-1, keepdim=True) / 127).all()
    assert not codes[0, 0, 0].any()
    # what was rounded once stays as it is
    again, same = rounded(codes.float() * scale.float())
    assert torch.equal(again, codes) and torch.equal(same, scale)


def test_memory() -> None:
    plain, eight = KVCache(3, 2, 64, CPU, torch.bfloat16), QuantizedKVCache(3, 2, 64, CPU, torch.bfloat16)
    for cache in (plain, eight):
        cache.reserve(2, 100)
        assert (cache.slots, cache.capacity) == (2, 128)
    assert plain.nbytes == 2 * 3 * 2 * 2 * 128 * 64 * 2
    assert eight.nbytes == 2 * 3 * 2 * 2 * 128 * (64 + 2)


@pytest.mark.parametrize("by_index", [False, True])
def test_what_a_pass_writes_it_reads_rounded(by_index: bool) -> None:
    cache = QuantizedKVCache(2, 2, 16, CPU, torch.float32)
    cache.reserve(2, 64)
    requests = [RequestRows.chain(1, 0, TOKENS[:4]), RequestRows.chain(0, 0, TOKENS[:3])]
    work = cache.of_pass(PassInputs.of("chain", requests, CPU))
    k, v = torch.randn(2, 2, 4, 2, 16), torch.randn(2, 2, 4, 2, 16)
    if by_index:
        for part, new in ((work._codes, 0), (work._scales, 1)):
            part.write_by_index(0, rounded(k)[new], rounded(v)[new])
    else:
        work.write(0, k, v)
    for index, live in ((0, 4), (1, 3)):
        k_gGKD, v_gGKD = work.keys_values(index, 0, 2)
        for read, given in ((k_gGKD, k), (v_gGKD, v)):
            codes, scale = rounded(given[:, index, :live].transpose(1, 2))
            assert torch.equal(read[:, :, :live], codes.float() * scale.float())
    assert not work.in_place
    with pytest.raises(ValueError, match="cannot be used in place"):
        work.layers(0, 2)
    # committing moves codes and scales together
    before, _ = work.keys_values(0, 0, 2)
    cache.commit([1], [0], [[1, 3]])
    after, _ = cache.of_pass(work.inputs).keys_values(0, 0, 2)
    assert torch.equal(after[:, :, :2], before[:, :, [1, 3]])


def logits(executor: Executor, chunk: int) -> torch.Tensor:
    """Of the last tokens [5, V], with the first ones fed in chunks."""
    session = Session(executor)
    for at in range(0, 8, chunk):
        session.prefill(0, TOKENS[at : min(at + chunk, 8)])
    return session.score([0], [TokenTree.chain(TOKENS[8], TOKENS[9:])])[0].logits_NV


def executor(ops: Ops | None = None, in_int8: bool = True) -> TorchExecutor:
    made = TorchExecutor(tiny_decoder("smollm"), ops or Ops())
    if in_int8:
        made.keep_cache_in("int8")
    return made


def test_logits_do_not_depend_on_the_passes_that_tokens_came_in() -> None:
    eight, plain = logits(executor(), 8), logits(executor(in_int8=False), 8)
    assert (logits(executor(), 1) - eight).abs().max() < 1e-4 * eight.abs().max()
    difference = (eight - plain).abs().max() / plain.abs().max()
    assert 1e-4 < difference < 0.05
    # a kernel that takes whole slots leaves it to the reference
    assert (logits(executor(StaticOps()), 8) - eight).abs().max() < 1e-4 * eight.abs().max()


@pytest.mark.parametrize("pipeline", ["easyspec_paper", "prompt_lookup", "layer_skip_tree", "alspec"])
def test_answers_are_those_of_plain_decoding_with_the_same_cache(pipeline: str, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, num_hidden_layers=6)
    options = ["model.kv_cache=int8", "max_new_tokens=24", "ignore_eos=true", "sampling.repetition_penalty=1.2"]
    if pipeline == "alspec":
        options += ["predictor.size=4", "attention_verifier.threshold=0"]
    engine = Engine.from_pipeline(pipeline, target=tmp_path, overrides=options)
    prompts = ["Why is the sky blue?", "Name three colours."]
    answers = [answer.tokens for answer in engine.generate(prompts)]
    assert answers == [answer.tokens for answer in engine.with_pipeline("vanilla").generate(prompts)]
    assert type(engine.pipeline.engine.target.cache) is QuantizedKVCache
    if pipeline == "easyspec_paper":
        assert type(engine.pipeline.models.session(engine.pipeline.models.draft()).cache) is QuantizedKVCache
        with pytest.raises(UserError, match="model.kv_cache: 'auto' is asked for, and the loaded models have 'int8'"):
            engine.with_pipeline("vanilla", overrides=["model.kv_cache=auto"])


def test_caches_that_cannot_be_in_8_bits(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    with pytest.raises(UserError, match="model.kv_cache: the cache of an encoder-decoder model"):
        Engine.from_pipeline("vanilla", target=tmp_path, overrides=["model.kv_cache=int8"])

    class Foreign(TorchExecutor):
        keep_cache_in = Executor.keep_cache_in

    capturing = GraphExecutor(tiny_decoder("smollm"), Ops(), lambda run: (run, run()))
    with pytest.raises(UserError, match="model.kv_cache: captured passes read the cache in place"):
        capturing.keep_cache_in("int8")
    with pytest.raises(UserError, match="model.kv_cache: Foreign has caches of one kind only; use kv_cache=auto"):
        Foreign(tiny_decoder("smollm"), Ops()).keep_cache_in("int8")
