"""Compiled stages compute what eager ones do, from two graphs, of which none is made in the middle of a run.

Left out only where the trial says that nothing can be compiled here; whether it says so rightly is tested.

Legend: B requests, N rows, M model dim, D head dim.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spec_sdk.model import compiled_decoder, compiler
from spec_sdk.model.compiled_decoder import MOST_ROWS, CompiledDecoder, compile_decoder
from spec_sdk.model.compiler import Compiler
from spec_sdk.model.decoder import Decoder, Rotations
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.testing import check_executor
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from tests.support.real_pipelines import bench_prompts, settings_of, tokens_of

CPU = torch.device("cpu")
PIPELINES = ("vanilla", "sd_chain", "easyspec_paper", "alspec")


@pytest.fixture(scope="module")
def works() -> None:
    if fault := compiler.trial():
        pytest.skip(f"nothing can be compiled here: {fault}")


def test_the_trial_is_right() -> None:
    """A machine with g++ compiles; one without is told so."""
    fault = compiler.trial()
    assert (fault is None) == (shutil.which("g++") is not None), fault


def test_stages_are_those_of_the_plain_decoder(works: None) -> None:
    """Of every number of rows, requests and layer, within rounding; all of them from two graphs."""
    made = Compiler()
    plain = load_decoder(RandomWeights(TINY, 0), CPU, torch.float32, CpuOps())
    fast, fault = compile_decoder(plain, made)
    assert isinstance(fast, CompiledDecoder)
    assert fault is None
    assert made.graphs == 2
    M, D = TINY.hidden_size, TINY.head_dim
    for B, N in ((1, 1), (1, 2), (3, 1), (3, 5), (1, MOST_ROWS), (1, MOST_ROWS + 1)):
        h, a = torch.randn(2, B, N, M)
        cos, sin = torch.randn(2, B, N, 1, D)
        for layer in range(plain.layers):
            with torch.no_grad():
                found = (
                    *fast.pre_attention(layer, h, Rotations([(cos, sin)] * len(plain.ropes))),
                    fast.post_attention(layer, h, a),
                )
                expected = (
                    *plain.pre_attention(layer, h, Rotations([(cos, sin)] * len(plain.ropes))),
                    plain.post_attention(layer, h, a),
                )
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.shape == theirs.shape
                assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def test_a_compiled_model_is_a_sound_executor_and_compiles_nothing_later(works: None) -> None:
    """Chains, trees, batches and cuts, with a layer-parallel runner too: all are run by the two graphs."""
    made = Compiler()

    def load(source: RandomWeights, dtype: torch.dtype) -> TorchExecutor:
        decoder, fault = compile_decoder(load_decoder(source, CPU, dtype, CpuOps()), made)
        assert fault is None
        return TorchExecutor(decoder, CpuOps())

    load(RandomWeights(TINY, 0), torch.float32)
    before = made.graphs, made.compiled
    check_executor(
        load,  # type: ignore[arg-type]
        runners=(SequentialRunner, lambda: LayerParallelRunner(LayerParallelConfig())),
        seeds=(0,),
    )
    assert (made.graphs, made.compiled) == before == (2, made.compiled)


def test_a_kept_graph_needs_no_compiler(works: None, tmp_path: Path) -> None:
    """In another process, which has no g++ and never imports torch's compiler."""
    compile_decoder(load_decoder(RandomWeights(TINY, 0), CPU, torch.float32, CpuOps()), Compiler())
    code = """
import json, sys, torch
from spec_sdk.model.compiled_decoder import compile_decoder
from spec_sdk.model.compiler import Compiler
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
made = Compiler()
compile_decoder(load_decoder(RandomWeights(TINY, 1), torch.device("cpu"), torch.float32, CpuOps()), made)
print(json.dumps([made.graphs, made.compiled, "torch._inductor.compile_fx" in sys.modules]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": str(tmp_path), **cache()}, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == [2, 0, False]


def with_quantized_mlps(decoder: Decoder) -> Decoder:
    """The same with 8-bit matrices in its MLPs, whose inputs are whole groups of 32."""
    blocks = []
    for block in decoder.blocks:
        assert isinstance(block.mlp, GatedMLP)
        made = []
        for part in block.mlp.projections:
            codes = (part.weight_OI * 127 / part.weight_OI.abs().max()).round().to(torch.int8)
            scale = torch.full((part.outputs, part.inputs // 32), 0.01, dtype=torch.float16)
            made.append(NativeQuantizedProjection(QuantizedMatrix(codes, scale)))
        blocks.append(dataclasses.replace(block, mlp=GatedMLP(made[0], made[1])))
    return Decoder(
        decoder.config, blocks, decoder.embedding, decoder.final_norm_M, decoder.output_head, sources=decoder.sources
    )


@pytest.mark.parametrize("quantized", [pytest.param(False, marks=pytest.mark.full), True])
def test_graphs_call_native_products(quantized: bool, works: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, dense and quantised: the stage after attention has both, and alone takes half the time."""
    plain = load_decoder(RandomWeights(TINY, 0), CPU, torch.float32, NativeOps(CpuOps()))
    if quantized:
        plain = with_quantized_mlps(plain)
        monkeypatch.setattr(compiled_decoder._Before, "exempt", lambda decoder, layer: "left out")
    fast, fault = compile_decoder(plain, Compiler())
    assert isinstance(fast, CompiledDecoder) and fast.compiled[1].after is not None
    assert quantized or fault is None
    for rows in (1, 5):
        h, a = torch.randn(2, 1, rows, TINY.hidden_size)
        cos, sin = torch.randn(2, 1, rows, 1, TINY.head_dim)
        with torch.no_grad():
            work = Rotations([(cos, sin)] * len(plain.ropes))
            found = (*fast.pre_attention(1, h, work), fast.post_attention(1, h, a))
            expected = (*plain.pre_attention(1, h, work), plain.post_attention(1, h, a))
        for ours, theirs in zip(found, expected, strict=True):
            assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def cache() -> dict[str, str]:
    return {"SPEC_SDK_CACHE": str(compiler.directory().parents[1])}


def real(name: str, compiled: bool) -> Pipeline:
    # what is compiled leaves rows as they are; the draft model is cut out of the target and runs its graphs
    options = [f"backend.compile={str(compiled).lower()}", "backend.activations=exact", "model.draft=cut"]
    return build_pipeline(settings_of(f"pipeline={name}", *options), Registry.discover())


@pytest.mark.full
def test_greedy_tokens_of_the_default_model(works: None) -> None:
    """Compiled as eager, and speculating as plain decoding, both compiled; a second prompt compiles nothing."""
    eager = {name: answers(name, compiled=False) for name in PIPELINES}
    for name in PIPELINES:
        found = answers(name, compiled=True)
        assert found == eager[name], name
        if name != "alspec":
            assert found == eager["vanilla"], name


def answers(name: str, compiled: bool) -> list[list[int]]:
    pipeline = real(name, compiled)
    before = dict(pipeline.backend.compiled)
    assert before["graphs"] == (2 if compiled else 0)
    found = [tokens_of(pipeline, prompt, 24) for prompt in bench_prompts(pipeline, 2, longest=600)]
    assert dict(pipeline.backend.compiled) == before, "no prompt, drafter or tree has anything compiled"
    return found
