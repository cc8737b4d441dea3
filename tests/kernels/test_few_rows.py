"""Products of a matrix with few rows, with what stands before and behind them in a block, against float64.

Legend: B requests, N rows of a request, I inputs, O outputs, P parts, H query heads, G KV heads, D head dim, S cache
slots, C their capacity, Q blocks, K = B*N rows, M model dim.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from benchmarks.gpu.random_model import random_tree
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.rope import rotate
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends import few_rows
from spec_sdk_backends.cuda_graphs import GraphCapture
from spec_sdk_backends.few_rows import (
    ROWS,
    FewRows,
    gated_product_of_few_rows,
    product_of_few_rows,
    rotated_product_of_few_rows,
    summed_product_of_few_rows,
    takes_few_rows,
)
from spec_sdk_backends.few_rows_tiles import FewRowsTile
from spec_sdk_backends.fused_decoder import FusedDecoder, add_rms_norm, gated_activation
from spec_sdk_backends.interleaved_products import InterleavedProjection
from spec_sdk_backends.interleaved_weights import InterleavedWeights
from spec_sdk_backends.triton_ops import TritonOps
from tests.kernels.compile_fused_block import FEW
from tests.kernels.test_fused_block import check_passes
from tests.support.skips import interpreted
from tests.support.tiny_decoder import ModelTensors, tiny_decoder

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
    part_PBNO = product_of_few_rows(FewRows(x_BNI), Projection(weight_OI, bias_O if biased else None), tile)
    assert part_PBNO.shape == (tile.parts, requests, rows, outputs) and part_PBNO.dtype == torch.float32
    expected = F.linear(x_BNI.double(), weight_OI.double(), bias_O.double() if biased else None)
    torch.testing.assert_close(part_PBNO.double().sum(0), expected, atol=1e-4, rtol=1e-5)


def test_a_single_part_is_of_the_rows_dtype_and_several_are_not(device: torch.device) -> None:
    x_BNI = numbers(1, 3, 64, seed=0, device=device, dtype=torch.float16)
    projection = Projection(numbers(64, 64, seed=1, device=device, dtype=torch.float16))
    found = [product_of_few_rows(FewRows(x_BNI), projection, tile).dtype for tile in TILES[:2]]
    assert found == [torch.float16, torch.float32]


@pytest.mark.parametrize("tile", [FewRowsTile(16, 32, 1, 2, 4, 0), TILES[0]], ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("inputs", "width"), [(64, 64), (72, 50)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_gated_product(
    biased: bool, inputs: int, width: int, activation: str, tile: FewRowsTile, device: torch.device
) -> None:
    """The gate's outputs come first, in the matrix as in the bias."""
    weight_OI, bias_O = numbers(2 * width, inputs, seed=1, device=device), numbers(2 * width, seed=2, device=device)
    x_BNI = numbers(2, 5, inputs, seed=3, device=device)
    projection = Projection(weight_OI, bias_O if biased else None)
    found = gated_product_of_few_rows(FewRows(x_BNI), projection, activation, tile)
    expected = F.linear(x_BNI.double(), weight_OI.double(), bias_O.double() if biased else None)
    gate, up = expected.chunk(2, -1)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    assert found is not None
    torch.testing.assert_close(found.double(), active * up, atol=1e-3, rtol=1e-4)
    assert gated_product_of_few_rows(FewRows(x_BNI), projection, activation, TILES[1]) is None, "its inputs are divided"


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("head_dim", [16, 24])
def test_a_rotated_product(head_dim: int, biased: bool, device: torch.device) -> None:
    """Of three requests of other lengths, in slots out of order; what belongs to others stays as it was."""
    B, N, H, G, D, S, C, inputs = 3, 4, 4, 2, head_dim, 5, 12, 40
    requests = [RequestRows.chain(slot, prefix, [1] * rows) for slot, prefix, rows in ((4, 0, 4), (0, 7, 1), (2, 5, 3))]
    of_pass, heads = PassInputs.of("chain", requests, device), H + 2 * G
    weight_OI, bias_O = numbers(heads * D, inputs, seed=0, device=device), numbers(heads * D, seed=1, device=device)
    projection, x_BNI = Projection(weight_OI, bias_O if biased else None), numbers(B, N, inputs, seed=2, device=device)
    square_QK = numbers(3, B * N, seed=3, device=device).square()
    rows = FewRows(x_BNI, square_QK, 0.3)
    angle_CD = numbers(C, D // 2, seed=4, device=device).repeat(1, 2)
    cos_CD, sin_CD = angle_CD.cos(), 1.1 * angle_CD.sin()
    k_SGCD, v_SGCD = torch.full((2, S, G, C, D), 7.0, device=device).unbind(0)
    expected_k, expected_v = k_SGCD.clone(), v_SGCD.clone()
    tile, stored = FewRowsTile(outputs=32, inputs=16, parts=1, stages=2, warps=4, ahead=0), (k_SGCD, v_SGCD, of_pass)
    rest = (cos_CD, sin_CD), of_pass.position_BN, stored
    q_BNHD = rotated_product_of_few_rows(rows, projection, *rest, tile)
    assert q_BNHD is not None
    assert rotated_product_of_few_rows(rows, projection, *rest, TILES[1]) is None, "its inputs are divided"
    scale_BN1 = (square_QK.double().sum(0) / inputs + 0.3).rsqrt().view(B, N, 1)
    wide = F.linear(scale_BN1 * x_BNI.double(), weight_OI.double(), bias_O.double() if biased else None)
    wide = wide.view(B, N, heads, D)
    angles = (table[of_pass.position_BN][:, :, None].double() for table in (cos_CD, sin_CD))
    turned = rotate(wide[:, :, : H + G], *angles)
    torch.testing.assert_close(q_BNHD.double(), turned[:, :, :H], atol=1e-4, rtol=1e-4)
    for b, request in enumerate(requests):
        for row in range(len(request.token)):
            expected_k[request.slot, :, request.write_at + row] = turned[b, row, H:].float()
            expected_v[request.slot, :, request.write_at + row] = wide[b, row, H + G :].float()
    torch.testing.assert_close(k_SGCD, expected_k, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v_SGCD, expected_v, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 128), (72, 100)])
@pytest.mark.parametrize("biased", [False, True])
def test_what_is_summed_is_normalised_by_what_reads_it(
    biased: bool, inputs: int, outputs: int, tile: FewRowsTile, device: torch.device
) -> None:
    """h + a product, then a product with its norm: the scale of the rows is the second one's, and the counters are left
    as they were.
    """
    there, bias_O = numbers(outputs, inputs, seed=1, device=device), numbers(outputs, seed=2, device=device)
    back, x_BNI = numbers(48, outputs, seed=3, device=device), numbers(2, 5, inputs, seed=4, device=device)
    h_BNO, gain_O = numbers(2, 5, outputs, seed=5, device=device), numbers(outputs, seed=6, device=device)
    arrived = torch.zeros(16, dtype=torch.int32, device=device)
    projection = Projection(there, bias_O if biased else None)
    total, rows = summed_product_of_few_rows(x_BNI, projection, h_BNO, arrived, gain_O, 0.3, tile)
    expected = h_BNO.double() + F.linear(x_BNI.double(), there.double(), bias_O.double() if biased else None)
    torch.testing.assert_close(total.double(), expected, atol=1e-4, rtol=1e-5)
    assert rows is not None and not arrived.any()
    part_PBNO = product_of_few_rows(rows, Projection(back), tile)
    normed = expected * (expected.square().mean(-1, keepdim=True) + 0.3).rsqrt() * gain_O.double()
    torch.testing.assert_close(part_PBNO.double().sum(0), F.linear(normed, back.double()), atol=1e-4, rtol=1e-4)
    again, no_rows = summed_product_of_few_rows(x_BNI, projection, h_BNO, arrived, None, 0.3, tile)
    assert torch.equal(again, total) and no_rows is None


@pytest.mark.parametrize("parts", [2, 5])
def test_a_gate_sums_the_parts(parts: int, device: torch.device) -> None:
    gate_up = numbers(parts, 2, 3, 2 * 33, seed=3, device=device)
    gate, up = gate_up.double().sum(0).chunk(2, -1)
    active = gated_activation(gate_up, torch.float32, "silu")
    torch.testing.assert_close(active.double(), F.silu(gate) * up, atol=1e-5, rtol=1e-4)


@interpreted
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ["smollm", "qwen3", pytest.param("qwen2", marks=pytest.mark.full)])
def test_a_decoder_of_products_of_few_rows(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, a tree and what follows, with whole products and with divided ones."""
    tile = FewRowsTile(outputs=32, inputs=16, parts=parts, stages=2, warps=4, ahead=0)
    monkeypatch.setattr(FewRowsTile, "choose", lambda *sizes, **how: tile)
    check_passes(name)


def test_trees_of_other_sizes_one_after_the_other(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, positions and visible blocks differ from pass to pass; on a GPU captured ones, of which each overlaps
    with what it reads.
    """
    monkeypatch.setattr(few_rows, "LEAST_INPUTS", 16)
    on_gpu = device.type == "cuda"
    dtype, tolerance, turns = (torch.bfloat16, 0.1, 40) if on_gpu else (torch.float32, 1e-4, 3)
    decoder = load_decoder(ModelTensors("smollm", 0), device, dtype)
    fused, ops = FusedDecoder(decoder), TritonOps()
    # GPUs whose launches do not overlap take the library's products
    assert fused.takes_few_rows or on_gpu
    captured = GraphExecutor(fused, ops, GraphCapture(device)) if on_gpu else TorchExecutor(fused, ops)
    sessions, chosen = [Session(captured), Session(TorchExecutor(decoder, Ops()))], random.Random(0)
    prompt = [chosen.randrange(decoder.vocabulary) for _ in range(70)]
    for session in sessions:
        session.prefill(0, prompt)
    for turn in range(turns):
        tree = random_tree(turn, chosen.randint(33, 64), decoder.vocabulary)
        found_NV, expected_NV = (session.score([0], [tree])[0].logits_NV.float() for session in sessions)
        assert (found_NV - expected_NV).abs().max() <= tolerance * expected_NV.abs().max()
        path = tree.path_to(chosen.randrange(tree.size))
        for session in sessions:
            session.commit([0], [path])


@interpreted
def test_other_numbers_of_rows_are_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    gated = gated_product_of_few_rows

    def counted(rows: FewRows, projection: Projection, activation: str) -> torch.Tensor | None:
        asked.append(rows.x_BNI[..., 0].numel())
        return gated(rows, projection, activation)

    monkeypatch.setattr("spec_sdk_backends.fused_decoder.gated_product_of_few_rows", counted)
    session = Session(TorchExecutor(FusedDecoder(tiny_decoder("smollm")), Ops()))
    session.prefill(0, [5] * (ROWS[-1] + 1))
    session.feed([0], [[5] * (ROWS[0] - 1)])
    assert not asked
    session.feed([0], [[5] * ROWS[0]])
    assert asked == 5 * [ROWS[0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bits", [None, 4, 6])
@pytest.mark.parametrize("rows", [1, 2, 8, 33, 64])
@pytest.mark.parametrize(("hidden", "width"), [(576, 1536), (2048, 1024), (2048, 8192), (4096, 14336)])
def test_half_precision_one_after_the_other(
    hidden: int, width: int, rows: int, bits: int | None, device: torch.device
) -> None:
    """MLPs in the tiles of real shapes, captured, with dense weights and in few bits; each launch reads what the one
    before wrote, which may still run.
    """
    dtype = torch.bfloat16

    def made(weight_OI: torch.Tensor) -> Projection:
        if bits is None:
            return Projection(weight_OI)
        return InterleavedProjection(InterleavedWeights.of(quantize(weight_OI.cpu(), bits).to(device)))

    there = made(numbers(2 * width, hidden, seed=1, device=device, dtype=dtype) / hidden**0.5)
    back = made(numbers(hidden, width, seed=2, device=device, dtype=dtype) / width**0.5)
    gain_M = 1 + 0.3 * numbers(hidden, seed=4, device=device, dtype=dtype)
    x_1NM = numbers(1, rows, hidden, seed=3, device=device, dtype=dtype)
    arrived = torch.zeros(hidden, dtype=torch.int32, device=device)

    def chained() -> torch.Tensor:
        h_1NM = x_1NM
        scaled: FewRows | None = FewRows(add_rms_norm(x_1NM, None, gain_M, 1e-5)[1])
        for _ in range(4):
            assert scaled is not None
            active = gated_product_of_few_rows(scaled, there, "silu")
            if active is None:
                active = gated_activation(product_of_few_rows(scaled, there), dtype, "silu")
            h_1NM, scaled = summed_product_of_few_rows(active, back, h_1NM, arrived, gain_M, 1e-5)
        return h_1NM

    chained()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_1NM = chained()
    found = []
    for seed in (4, 5, 6, 4):
        x_1NM.copy_(numbers(1, rows, hidden, seed=seed, device=device, dtype=dtype))
        expected = x_1NM.double()
        for _ in range(4):
            scale = (expected.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            gate, up = F.linear(expected * scale * gain_M.double(), there.weight_OI.double()).chunk(2, -1)
            expected = expected + F.linear(F.silu(gate) * up, back.weight_OI.double())
        graph.replay()
        assert (out_1NM.double() - expected).norm() < 2e-2 * expected.norm()
        found.append(out_1NM.clone())
    assert torch.equal(found[0], found[3]), "whoever sums the parts, they are summed in one order"
    assert not arrived.any()


def test_blocks_that_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with experts; on a GPU also small ones, and those where a multiprocessor lacks the memory, or launches do
    not overlap.
    """
    block, cpu, gpu = tiny_decoder("smollm").blocks[0], torch.device("cpu"), torch.device("cuda")
    full, short = torch.float32, torch.bfloat16
    assert takes_few_rows(block, cpu, full) and not takes_few_rows(tiny_decoder("mixtral").blocks[0], cpu, full)
    half = in_dtype(block, short)
    facts = {"shared": 228 * 1024, "overlap": True, "inputs": 16}

    def given(**other: object) -> bool:
        now = {**facts, **other}
        has = SimpleNamespace(shared_memory_per_multiprocessor=now["shared"])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
        monkeypatch.setattr(few_rows, "overlapped", lambda device: {"OVERLAPPED": now["overlap"]})
        monkeypatch.setattr(few_rows, "LEAST_INPUTS", now["inputs"])
        return takes_few_rows(half, gpu, short)

    assert given()
    assert not (given(shared=100 * 1024) or given(overlap=False) or given(inputs=2048))
    assert given() and not takes_few_rows(block, gpu, full), "float32 is the library's"
    assert not takes_few_rows(in_dtype(block, torch.float16), gpu, torch.float16), "and so is float16"


def in_dtype(block: BlockWeights, dtype: torch.dtype) -> BlockWeights:
    def cast(projection: Projection) -> Projection:
        return Projection(projection.weight_OI.to(dtype))

    assert isinstance(block.mlp, GatedMLP)
    mlp = GatedMLP(cast(block.mlp.gate_up), cast(block.mlp.down))
    return replace(block, qkv=cast(block.qkv), output=cast(block.output), mlp=mlp)


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows", "parts", "stages"),
    [
        *((4096, 6144, 64, 1, 5), (4096, 4096, 64, 2, 5), (2048, 2048, 64, 4, 5), (2048, 512, 64, 4, 5)),
        *((4096, 28672, 64, 1, 3), (4096, 28672, 32, 1, 5), (4096, 28672, 16, 1, 4)),
    ],
)
def test_programs_for_each_multiprocessor(
    inputs: int, outputs: int, rows: int, parts: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    tile = FewRowsTile.choose(inputs, outputs, rows, torch.device("cuda"))
    assert (tile.outputs, tile.parts, tile.stages) == (64, parts, stages)


def test_the_tiles_that_are_compiled_for_a_gpu_are_those_that_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    has = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    products = ((4096, 6144, 64, False), (4096, 28672, 16, False), (4096, 6144, 16, True))
    on = torch.device("cuda")
    chosen = [FewRowsTile.choose(inputs, outputs, rows, on, whole) for inputs, outputs, rows, whole in products]
    assert chosen == [tile for tile, _, _ in FEW]
    assert [tile.rows_of_block(sizes[2]) for tile, sizes in zip(chosen, products, strict=True)] == [
        rows for _, rows, _ in FEW
    ]


def test_blocks_are_small_where_inputs_are_not_divided_and_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    has = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    on = torch.device("cuda")
    small, other = FewRowsTile.choose(2048, 3072, 16, on, whole=True), FewRowsTile.choose(2048, 3072, 16, on)
    assert (small.outputs, small.parts, other.outputs, other.parts) == (16, 1, 64, 2)
    assert FewRowsTile.choose(2048, 3072, 17, on, whole=True) == FewRowsTile.choose(2048, 3072, 17, on)
    assert FewRowsTile.choose(4096, 28672, 16, on, whole=True).outputs == 64, "there are blocks enough"
