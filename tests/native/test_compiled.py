"""Compiled stages call native products as they are, dense and quantised."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from spec_sdk.model import compiler
from spec_sdk.model.compiled_decoder import CompiledDecoder, compile_decoder
from spec_sdk.model.compiler import Compiler
from spec_sdk.model.decoder import Decoder, Rotations
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.quantized import NativeQuantizedProjection


@pytest.fixture(scope="module", autouse=True)
def _works() -> None:
    if fault := compiler.trial():
        pytest.skip(f"nothing can be compiled here: {fault}")


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
def test_graphs_call_native_products(quantized: bool) -> None:
    plain = load_decoder(RandomWeights(TINY, 0), torch.device("cpu"), torch.float32, NativeOps(CpuOps()))
    if quantized:
        plain = with_quantized_mlps(plain)
    fast, fault = compile_decoder(plain, Compiler())
    assert fault is None and isinstance(fast, CompiledDecoder)
    for rows in (1, 5):
        h, a = torch.randn(2, 1, rows, TINY.hidden_size)
        cos, sin = torch.randn(2, 1, rows, 1, TINY.head_dim)
        with torch.no_grad():
            work = Rotations([(cos, sin)] * len(plain.ropes))
            found = (*fast.pre_attention(1, h, work), fast.post_attention(1, h, a))
            expected = (*plain.pre_attention(1, h, work), plain.post_attention(1, h, a))
        for ours, theirs in zip(found, expected, strict=True):
            assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())
