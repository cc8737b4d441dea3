"""Products of a matrix with few rows, whose parts are summed where they are read, against float64.

Legend: B requests, N rows of a request, I inputs, O outputs, P parts.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk_backends import few_rows, fused_decoder
from spec_sdk_backends.few_rows import ROWS, FewRowsTile, product_of_few_rows, takes_few_rows
from spec_sdk_backends.fused_decoder import FusedDecoder, add_rms_norm, gated_mlp
from tests.kernels.test_fused_block import check_passes
from tests.support.skips import interpreted
from tests.support.tiny_decoder import tiny_decoder

TILES = (
    FewRowsTile(outputs=64, inputs=64, parts=1, stages=3, warps=4, ahead=128),
    FewRowsTile(outputs=64, inputs=16, parts=4, stages=3, warps=4, ahead=64),
    FewRowsTile(outputs=128, inputs=32, parts=3, stages=3, warps=4, ahead=0),
)
"""With parts that are as long, shorter, and some of nothing."""


def numbers(*shape: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 128), (72, 100), (24, 48)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("requests", "rows"), [(1, 2), (3, 7), (1, 64)])
def test_parts_of_a_product(
    requests: int, rows: int, biased: bool, inputs: int, outputs: int, tile: FewRowsTile, device: torch.device
) -> None:
    weight_OI, bias_O = (numbers(*shape, seed=len(shape), device=device) for shape in ((outputs, inputs), (outputs,)))
    x_BNI = numbers(requests, rows, inputs, seed=3, device=device)
    part_PBNO = product_of_few_rows(x_BNI, Projection(weight_OI, bias_O if biased else None), tile)
    assert part_PBNO.shape == (tile.parts, requests, rows, outputs) and part_PBNO.dtype == torch.float32
    expected = F.linear(x_BNI.double(), weight_OI.double(), bias_O.double() if biased else None)
    torch.testing.assert_close(part_PBNO.double().sum(0), expected, atol=1e-4, rtol=1e-5)


def test_a_single_part_is_of_the_rows_dtype_and_several_are_not(device: torch.device) -> None:
    x_BNI = numbers(1, 3, 64, seed=0, device=device, dtype=torch.float16)
    projection = Projection(numbers(64, 64, seed=1, device=device, dtype=torch.float16))
    found = [product_of_few_rows(x_BNI, projection, tile).dtype for tile in TILES[:2]]
    assert found == [torch.float16, torch.float32]


@pytest.mark.parametrize("parts", [2, 5])
def test_small_operations_sum_the_parts(parts: int, device: torch.device) -> None:
    h_BNM, gain_M = numbers(2, 3, 48, seed=0, device=device), numbers(48, seed=1, device=device)
    added_PBNM = numbers(parts, 2, 3, 48, seed=2, device=device)
    total, normed = add_rms_norm(h_BNM, added_PBNM, gain_M, 1e-5)
    expected = h_BNM.double() + added_PBNM.double().sum(0)
    torch.testing.assert_close(total.double(), expected, atol=1e-5, rtol=1e-5)
    scale = (expected.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(normed.double(), expected * scale * gain_M.double(), atol=1e-5, rtol=1e-5)
    gate_up = numbers(parts, 2, 3, 2 * 33, seed=3, device=device)
    identity = Projection(torch.eye(33, device=device))
    mlp = GatedMLP(identity, identity)
    answers = iter([gate_up])
    active = gated_mlp(mlp, h_BNM, lambda x, projection: next(answers, x))
    gate, up = gate_up.double().sum(0).chunk(2, -1)
    torch.testing.assert_close(active.double(), F.silu(gate) * up, atol=1e-5, rtol=1e-4)


@interpreted
@pytest.mark.parametrize("name", ["smollm", "qwen3", pytest.param("qwen2", marks=pytest.mark.full)])
def test_a_decoder_whose_products_have_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, a tree and what follows, with products in three parts; those of one row have none."""
    tile = FewRowsTile(outputs=32, inputs=16, parts=3, stages=2, warps=4, ahead=0)
    monkeypatch.setattr(few_rows.FewRowsTile, "choose", lambda *sizes: tile)
    monkeypatch.setattr(fused_decoder, "ROWS", range(2, 65))
    check_passes(name)


@interpreted
def test_other_numbers_of_rows_are_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(x_BNI: torch.Tensor, projection: Projection) -> torch.Tensor:
        asked.append(x_BNI[..., 0].numel())
        return projection(x_BNI)[None]

    monkeypatch.setattr("spec_sdk_backends.fused_decoder.product_of_few_rows", counted)
    session = Session(TorchExecutor(FusedDecoder(tiny_decoder("smollm")), Ops()))
    session.prefill(0, [5] * (ROWS[-1] + 1))
    session.feed([0], [[5] * (ROWS[0] - 1)])
    assert not asked
    session.feed([0], [[5] * ROWS[0]])
    assert asked == 5 * 4 * [ROWS[0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [2, 8, 33, 64])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (4096, 6144), (14336, 4096)])
def test_half_precision_one_after_the_other(
    inputs: int, outputs: int, rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    """In the tiles of real shapes, captured; each launch reads what the one before wrote, which may still run."""
    there = Projection(numbers(outputs, inputs, seed=1, device=device, dtype=dtype) / inputs**0.5)
    back = Projection(numbers(inputs, outputs, seed=2, device=device, dtype=dtype) / outputs**0.5)
    gain_I, gain_O = (torch.ones(size, device=device, dtype=dtype) for size in (inputs, outputs))
    x_1NI, none_1NO = (numbers(1, rows, size, seed=3, device=device, dtype=dtype) for size in (inputs, outputs))

    def chained() -> torch.Tensor:
        h_1NI, x = add_rms_norm(x_1NI, None, gain_I, 1e-5)
        for _ in range(4):
            y_1NO = add_rms_norm(none_1NO, product_of_few_rows(x, there), gain_O, 1e-5)[1]
            h_1NI, x = add_rms_norm(h_1NI, product_of_few_rows(y_1NO, back), gain_I, 1e-5)
        return h_1NI

    chained()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_1NI = chained()

    def normed(x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    for seed in range(4, 8):
        x_1NI.copy_(numbers(1, rows, inputs, seed=seed, device=device, dtype=dtype))
        expected = x_1NI.double()
        for _ in range(4):
            y = normed(none_1NO.double() + F.linear(normed(expected), there.weight_OI.double()))
            expected = expected + F.linear(y, back.weight_OI.double())
        graph.replay()
        assert (out_1NI.double() - expected).norm() < 2e-2 * expected.norm()


def test_blocks_that_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with experts; on a GPU also small ones, and those where a multiprocessor lacks the memory, or launches do
    not overlap.
    """
    block, cpu, gpu = tiny_decoder("smollm").blocks[0], torch.device("cpu"), torch.device("cuda")
    assert takes_few_rows(block, cpu) and not takes_few_rows(tiny_decoder("mixtral").blocks[0], cpu)
    assert isinstance(block.mlp, GatedMLP)
    mlp = GatedMLP(halved(block.mlp.gate_up), halved(block.mlp.down))
    half = replace(block, qkv=halved(block.qkv), output=halved(block.output), mlp=mlp)
    facts = {"shared": 228 * 1024, "overlap": True, "inputs": 16}

    def given(**other: object) -> bool:
        now = {**facts, **other}
        has = SimpleNamespace(shared_memory_per_multiprocessor=now["shared"])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
        monkeypatch.setattr(few_rows, "overlapped", lambda device: {"OVERLAPPED": now["overlap"]})
        monkeypatch.setattr(few_rows, "LEAST_INPUTS", now["inputs"])
        return takes_few_rows(half, gpu)

    assert given()
    assert not (given(shared=100 * 1024) or given(overlap=False) or given(inputs=2048))
    assert given() and not takes_few_rows(block, gpu), "float32 is the library's"


def halved(projection: Projection) -> Projection:
    return Projection(projection.weight_OI.half())


@pytest.mark.parametrize(
    ("inputs", "outputs", "parts", "stages"),
    [(4096, 6144, 1, 5), (4096, 4096, 2, 5), (4096, 28672, 1, 3), (2048, 2048, 4, 5), (2048, 512, 4, 5)],
)
def test_programs_for_each_multiprocessor(
    inputs: int, outputs: int, parts: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    tile = FewRowsTile.choose(inputs, outputs, torch.device("cuda"))
    assert (tile.parts, tile.stages) == (parts, stages)
