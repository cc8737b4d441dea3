"""The KV cache in bfloat16 beside rows in float32.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim, B requests, N rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.model.cross_cache import CrossCache
from spec_sdk.model.executor import Executor
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rounded_kv_cache import RoundedKVCache
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.testing.static_ops import StaticOps
from spec_sdk.tree import TokenTree
from spec_sdk_backends.native.library import find
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_whisper import write_whisper

CPU = torch.device("cpu")
TOKENS = [5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9, 60, 61]


@pytest.mark.parametrize("by_index", [False, True])
def test_what_a_pass_writes_it_reads_rounded(by_index: bool) -> None:
    cache = RoundedKVCache(2, 2, 16, CPU, torch.float32)
    cache.reserve(2, 64)
    assert cache.nbytes == 2 * 2 * 2 * 2 * 64 * 16 * 2
    requests = [RequestRows.chain(1, 0, TOKENS[:4]), RequestRows.chain(0, 0, TOKENS[:3])]
    work = cache.of_pass(PassInputs.of("chain", requests, CPU))
    k, v = torch.randn(2, 2, 4, 2, 16), torch.randn(2, 2, 4, 2, 16)
    if by_index:
        work.write_by_index(0, k.bfloat16(), v.bfloat16())
    else:
        work.write(0, k, v)
    for index, live in ((0, 4), (1, 3)):
        for read, given in zip(work.keys_values(index, 0, 2), (k, v), strict=True):
            assert read.dtype == torch.float32
            assert torch.equal(read[:, :, :live], given[:, index, :live].transpose(1, 2).bfloat16().float())
    # a kernel may use what is stored, if it is told by the dtype
    assert not work.in_place and work.layers(0, 2)[0].dtype == torch.bfloat16
    before, _ = work.keys_values(0, 0, 2)
    cache.commit([1], [0], [[1, 3]])
    after, _ = work.of_pass(work.inputs).keys_values(0, 0, 2)
    assert torch.equal(after[:, :, :2], before[:, :, [1, 3]])


def logits(ops: Ops, form: str, chunk: int) -> torch.Tensor:
    """Of the last tokens [5, V], with the first ones fed in chunks."""
    executor = TorchExecutor(tiny_decoder("smollm"), ops)
    executor.keep_cache_in(form)
    session = Session(executor)
    for at in range(0, 8, chunk):
        session.prefill(0, TOKENS[at : min(at + chunk, 8)])
    return session.score([0], [TokenTree.chain(TOKENS[8], TOKENS[9:])])[0].logits_NV


def test_logits_do_not_depend_on_the_passes_that_tokens_came_in() -> None:
    rounded, exact = logits(Ops(), "bfloat16", 8), logits(Ops(), "exact", 8)
    size = exact.abs().max()
    assert (logits(Ops(), "bfloat16", 1) - rounded).abs().max() < 1e-4 * size
    assert 1e-5 * size < (rounded - exact).abs().max() < 0.01 * size
    # a kernel that takes whole slots leaves it to the reference
    assert (logits(StaticOps(), "bfloat16", 8) - rounded).abs().max() < 1e-4 * size


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("pipeline", ["easyspec_paper", "prompt_lookup", "layer_skip_tree"])
def test_answers_are_those_of_plain_decoding_with_the_same_cache(pipeline: str, native: bool, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, num_hidden_layers=6)
    options = ["model.kv_cache=bfloat16", f"backend.native={'auto' if native else 'false'}", "max_new_tokens=24"]
    options += ["ignore_eos=true", "sampling.repetition_penalty=1.2"]
    engine = Engine.from_pipeline(pipeline, target=tmp_path, overrides=options)
    prompts = ["Why is the sky blue?", "Name three colours."]
    answers = [answer.tokens for answer in engine.generate(prompts)]
    assert answers == [answer.tokens for answer in engine.with_pipeline("vanilla").generate(prompts)]
    assert type(engine.pipeline.engine.target.cache) is RoundedKVCache


AUTO = [
    ([], torch.float32),
    (["model.weights=int4"], torch.bfloat16),
    (["model.weights=int8", "model.draft=cut"], torch.bfloat16),
    (["model.weights=int4", "model.kv_cache=exact"], torch.float32),
    (["model.weights=int4", "backend.activations=exact"], torch.float32),
    (["model.weights=int4", "backend.compile=true"], torch.float32),
    (["model.kv_cache=bfloat16"], torch.bfloat16),
]


@pytest.mark.parametrize(("options", "dtype"), AUTO, ids=str)
def test_auto_rounds_where_rows_are_rounded(options: list[str], dtype: torch.dtype, tmp_path: Path) -> None:
    if isinstance(find(), str):
        pytest.skip("nothing can be compiled here")
    # heads of 16 and whole groups of 32, which the kernels take
    write_text_checkpoint(tmp_path, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
    pipeline = Engine.from_pipeline("layer_skip_chain", target=tmp_path, overrides=options).pipeline
    cache = pipeline.engine.target.cache
    assert isinstance(cache, KVCache) and cache.k_LSGCD.dtype == dtype
    draft = pipeline.models.session(pipeline.models.draft("cut")).cache
    assert isinstance(draft, KVCache) and draft.k_LSGCD.dtype == dtype


class WithOneCache(TorchExecutor):
    keep_cache_in = Executor.keep_cache_in


@pytest.mark.parametrize("kind", [TorchExecutor, GraphExecutor, WithOneCache])
def test_a_model_in_bfloat16_has_no_other_cache(kind: type[TorchExecutor]) -> None:
    decoder = tiny_decoder("smollm", dtype=torch.bfloat16)
    made = GraphExecutor(decoder, Ops(), lambda run: (run, run())) if kind is GraphExecutor else kind(decoder, Ops())
    made.bits_vary, form = None, made.form
    made.keep_cache_in("bfloat16")
    assert type(made.new_cache()) is KVCache
    assert made.bits_vary is None and made.form == form


def test_nor_has_an_encoder_decoder_model(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    options = ["model.kv_cache=bfloat16", "model.dtype=bfloat16"]
    engine = Engine.from_pipeline("vanilla", target=tmp_path, overrides=options)
    assert type(engine.pipeline.engine.target.cache) is CrossCache
