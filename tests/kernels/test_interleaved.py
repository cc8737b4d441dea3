"""Weights in few bits as kernels of the CUDA backend read them: none is lost, and products are those of the weights.

Legend: B requests, N rows of a request, I inputs, O outputs, K rows, S parts of the inputs, R rows of a matrix, G
scales of a row, H query heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.ops.quantized import BITS, QuantizedMatrix
from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends import interleaved_products, interleaved_trial, interleaved_weights
from spec_sdk_backends.deterministic_ops import DeterministicOps
from spec_sdk_backends.few_rows import (
    FewRows,
    gated_product_of_few_rows,
    in_bits,
    product_of_few_rows,
    rotated_product_of_few_rows,
    summed_product_of_few_rows,
    takes_few_rows,
)
from spec_sdk_backends.few_rows_tiles import FewRowsTile
from spec_sdk_backends.fused_decoder import FusedDecoder
from spec_sdk_backends.interleaved_products import InterleavedProjection
from spec_sdk_backends.interleaved_weights import InterleavedWeights, Interleaving
from spec_sdk_backends.triton_ops import TritonOps
from tests.kernels.test_fused_block import logits_of_passes
from tests.native.test_deterministic import Checkpoint
from tests.support.skips import interpreted

ON_GPU = torch.cuda.is_available()
SHAPES = ((5, 96), (7, 512), (40, 544))
"""Outputs and inputs: less than a block of a row, whole blocks, and more. None of the outputs are a program's."""
TILE = FewRowsTile(outputs=32, inputs=256, parts=1, stages=2, warps=2, ahead=512)


def numbers(*shape: int, seed: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def matrix(bits: int, offsets: bool, outputs: int, inputs: int, device: torch.device) -> QuantizedMatrix:
    """With every code and with scales of either sign."""
    made = quantize(numbers(outputs, inputs, seed=bits, device=torch.device("cpu")), bits)
    scale_OG = made.scale_OG * torch.where(numbers(*made.scale_OG.shape, seed=1, device=made.device) < 0, -1, 1).half()
    offset_OG = numbers(*made.scale_OG.shape, seed=2, device=made.device).half() if offsets else None
    return QuantizedMatrix(made.codes_OC, scale_OG, offset_OG).to(device)


def dense(of: Projection) -> Projection:
    """The same product of weights in floating point."""
    assert of.quantized is not None
    return Projection(of.quantized.plain().dequantized(torch.float32), of.bias_O)


def projection(
    bits: int, outputs: int, inputs: int, device: torch.device, biased: bool = False, offsets: bool = True
) -> InterleavedProjection:
    weights = InterleavedWeights.of(matrix(bits, offsets, outputs, inputs, device))
    return InterleavedProjection(weights, numbers(outputs, seed=4, device=device) if biased else None)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_no_weight_is_lost(bits: int, offsets: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any number of parts, and of rows that are asked for."""
    monkeypatch.setattr(interleaved_weights, "MOST_AT_ONCE", 1024)
    for outputs, inputs in SHAPES:
        expected = matrix(bits, offsets, outputs, inputs, device)
        found = InterleavedWeights.of(expected)
        assert (found.bits, found.outputs, found.inputs, found.device.type) == (bits, outputs, inputs, device.type)
        for one, other in zip(found.plain().parts(), expected.parts(), strict=True):
            assert torch.equal(one, other)
        for dtype in (torch.float32, torch.float16, *((torch.bfloat16,) if ON_GPU else ())):
            weight_OI = expected.dequantized(dtype)
            assert torch.equal(found.dequantized(dtype), weight_OI)
            assert torch.equal(found.dequantized(dtype, slice(1, 4)), weight_OI[1:4])
            # not neighbours in memory either
            row_R = torch.tensor([3, 1, 0, 1, 3, 1], device=device)[::2]
            assert torch.equal(found.dequantized(dtype, row_R), weight_OI[row_R])
    assert found.dequantized(torch.float32, slice(2, 2)).shape == (0, inputs)
    with pytest.raises(IndexError, match="not neighbours"):
        found.dequantized(torch.float32, slice(0, 4, 2))
    beyond_RI = found.dequantized(torch.float32, torch.tensor([40, 2, -1], device=device))
    assert beyond_RI[[0, 2]].isnan().all() and torch.equal(beyond_RI[1], expected.dequantized(torch.float32)[2])


def test_it_takes_no_more_memory(device: torch.device) -> None:
    """Where rows are whole blocks: as many bytes as codes, scales and offsets are."""
    for bits in BITS:
        for offsets in (False, True):
            stored = matrix(bits, offsets, 8, 512, device)
            assert InterleavedWeights.of(stored).nbytes == stored.nbytes


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_products(bits: int, offsets: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row, a few, more than the kernel takes at once, and more than it takes."""
    monkeypatch.setattr(interleaved_products, "MOST_ROWS", 70)
    for outputs, inputs in SHAPES[1:]:
        made = projection(bits, outputs, inputs, device, True, offsets)
        expected_of = dense(made)
        for rows in (1, 17, 70, 71):
            x_KI = numbers(rows, inputs, seed=3, device=device)
            expected = F.linear(x_KI.double(), expected_of.weight_OI.double(), made.bias_O.double())  # type: ignore[union-attr]
            found = made(x_KI[None])
            assert found.shape == (1, rows, outputs) and found.dtype == x_KI.dtype
            torch.testing.assert_close(found[0].double(), expected, atol=1e-3, rtol=1e-4)
    assert made(x_KI[:0]).shape == (0, outputs)
    x_KI = numbers(2, inputs, seed=3, device=device).requires_grad_()
    made(x_KI).sum().backward()
    torch.testing.assert_close(x_KI.grad, expected_of.weight_OI.sum(0).expand(2, -1), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("bits", BITS)
def test_parts_of_a_product(bits: int, parts: int, device: torch.device) -> None:
    """As long, shorter, and of nothing."""
    for inputs in (544, 768):
        made = projection(bits, 40, inputs, device, True)
        x_BNI = numbers(2, 5, inputs, seed=3, device=device)
        part_SBNO = product_of_few_rows(FewRows(x_BNI), made, replace(TILE, parts=parts))
        assert len(part_SBNO) == parts and part_SBNO.dtype == torch.float32
        expected = F.linear(x_BNI.double(), dense(made).weight_OI.double(), made.bias_O.double())  # type: ignore[union-attr]
        torch.testing.assert_close(part_SBNO.double().sum(0), expected, atol=1e-3, rtol=1e-4)


def test_parts_are_summed(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a layer that nothing behind it sums them for: an output head, or one that is called by itself."""
    made = projection(4, 40, 544, device, True)
    x_KI = numbers(70, 544, seed=3, device=device)
    whole = made(x_KI)
    monkeypatch.setattr(FewRowsTile, "choose", lambda *sizes, **how: replace(TILE, parts=2))
    torch.testing.assert_close(made(x_KI), whole, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_products_with_what_stands_around_them(bits: int, device: torch.device) -> None:
    """A gate, a residual with its norm, and a rotation: as of the same weights in floating point."""
    B, N, H, G, D, I = 2, 3, 2, 1, 16, 96  # noqa: E741
    x_BNI = numbers(B, N, I, seed=3, device=device)
    rows = FewRows(x_BNI, numbers(3, B * N, seed=5, device=device).square(), 0.3)
    small = replace(TILE, inputs=32)
    gate = projection(bits, 100, I, device, True)
    for activation in ("silu", "gelu_tanh"):
        found = gated_product_of_few_rows(rows, gate, activation, TILE)
        expected = gated_product_of_few_rows(rows, dense(gate), activation, small)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert gated_product_of_few_rows(rows, gate, "silu", replace(TILE, parts=2)) is None

    output = projection(bits, 40, I, device, True, offsets=False)
    h_BNO, gain_O = numbers(B, N, 40, seed=6, device=device), numbers(40, seed=7, device=device)
    arrived = torch.zeros(16, dtype=torch.int32, device=device)
    for parts in (1, 2):
        tile = replace(TILE, parts=parts)
        total, scaled = summed_product_of_few_rows(x_BNI, output, h_BNO, arrived, gain_O, 0.3, tile)
        expected_total, expected_scaled = summed_product_of_few_rows(
            x_BNI, dense(output), h_BNO, arrived, gain_O, 0.3, small
        )
        assert scaled is not None and expected_scaled is not None and not arrived.any()
        for one, other in (
            (total, expected_total),
            (scaled.x_BNI, expected_scaled.x_BNI),
            (scaled.square_QK, expected_scaled.square_QK),
        ):
            torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-3)

    qkv = projection(bits, (H + 2 * G) * D, I, device)
    of_pass = PassInputs.of("chain", [RequestRows.chain(1, 4, [1] * N), RequestRows.chain(0, 0, [1] * 2)], device)
    angle_CD = numbers(12, D // 2, seed=8, device=device).repeat(1, 2)
    stored = []
    for product, tile in ((qkv, TILE), (dense(qkv), small)):
        k_SGCD, v_SGCD = torch.full((2, 2, G, 12, D), 7.0, device=device).unbind(0)
        rotation, places = (angle_CD.cos(), angle_CD.sin()), (k_SGCD, v_SGCD, of_pass)
        q_BNHD = rotated_product_of_few_rows(rows, product, rotation, of_pass.position_BN, places, tile)
        assert q_BNHD is not None
        stored.append((q_BNHD[:1], q_BNHD[1, :2], k_SGCD, v_SGCD))
    for one, other in zip(*stored, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_wide_passes_expand_part_after_part(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = projection(4, 40, 96, device, True)
    x_KI = numbers(interleaved_products.MOST_ROWS + 1, 96, seed=3, device=device)
    whole = made(x_KI)
    monkeypatch.setattr(interleaved_products, "EXPANDED", 96 * 16)
    torch.testing.assert_close(made(x_KI), whole, atol=1e-4, rtol=1e-4)


def decoders(family: str, choice: str) -> tuple[Decoder, Decoder]:
    """Of the same weights in few bits: of fused products, and of the reference's."""
    shape: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    source = ChosenWeights(Checkpoint(family, **shape), choice, lambda bits: True)
    cpu = torch.device("cpu")
    return FusedDecoder(load_decoder(source, cpu, torch.float32, TritonOps())), load_decoder(source, cpu, torch.float32)


@interpreted
@pytest.mark.parametrize(("family", "choice"), [("smollm", "int4"), ("qwen3", "int8")])
def test_a_decoder_of_them(family: str, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, one token, a tree and what follows, in products of one row and of few: logits are those of the
    reference, and no matrix is expanded.
    """

    def expands(*arguments: Any) -> torch.Tensor:
        raise AssertionError("a matrix is expanded")

    monkeypatch.setattr(interleaved_products, "expanded_linear", expands)
    fused, reference = decoders(family, choice)
    assert isinstance(fused, FusedDecoder) and fused.takes_few_rows and not fused.takes_one_row
    assert all(in_bits(block.qkv) is not None for block in fused.blocks)
    executors = TorchExecutor(fused, TritonOps()), TorchExecutor(reference, Ops())
    logits = [logits_of_passes(Session(executor)) for executor in executors]
    for found, expected in zip(*logits, strict=True):
        assert expected.std() > 1e-3
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_which_blocks_take_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In few bits small ones too, on any GPU; in bfloat16. A dense layer among them has its own conditions."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    few = decoders("smollm", "int4")[0].blocks[0]
    some = replace(few, output=Projection(few.output.weight_OI.bfloat16()))
    has = SimpleNamespace(shared_memory_per_multiprocessor=100 * 1024, major=8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    assert takes_few_rows(few, gpu, torch.bfloat16) and not takes_few_rows(few, gpu, torch.float16)
    assert takes_few_rows(some, cpu, torch.float32) and not takes_few_rows(some, gpu, torch.bfloat16)


@pytest.mark.parametrize(
    ("rows", "shared", "multiprocessors", "expected"),
    [
        # outputs, parts, stages, warps; of products with 4,096 inputs and outputs
        (1, 228, 132, (32, 4, 4, 2)),
        (16, 100, 128, (32, 4, 4, 2)),
        (16, 100, 46, (32, 1, 4, 2)),
        (32, 228, 132, (64, 4, 4, 4)),
        (32, 100, 128, (64, 4, 4, 4)),
        (64, 228, 132, (128, 4, 4, 8)),
        (64, 100, 128, (64, 4, 3, 4)),
    ],
)
def test_tiles(
    rows: int, shared: int, multiprocessors: int, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    major = 9 if shared > 200 else 8
    has = SimpleNamespace(
        multi_processor_count=multiprocessors, shared_memory_per_multiprocessor=shared * 1024, major=major
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    form = Interleaving(4)
    tile = FewRowsTile.choose(4096, 4096, rows, torch.device("cuda"), form=form)
    assert (tile.outputs, tile.parts, tile.stages, tile.warps) == expected
    for form in map(Interleaving, BITS):
        for offsets in (False, True):
            tile = FewRowsTile.choose(4096, 4096, rows, torch.device("cuda"), form=form, offsets=offsets)
            assert tile.stages >= 3 and tile.inputs % form.inputs == 0
            assert tile.shared_bytes(rows, form, offsets, major) <= (shared - 1) * 1024


def test_only_where_they_gain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tried once on a GPU and kept; not taken where a product is wrong, where it is slower, or where it raises."""
    cpu, tried = torch.device("cpu"), list[float]()
    taken = {InterleavedProjection: 0.5, Projection: 1.0}

    def seconds(products: list[Projection], x_RI: torch.Tensor) -> float:
        if taken[type(products[0])] < 0:
            raise RuntimeError("out of shared memory")
        tried.append(taken[type(products[0])])
        return tried[-1]

    names: Iterator[str] = iter(f"GPU {number}" for number in range(9))
    monkeypatch.setattr(interleaved_trial, "SIZE", (64, 64))
    monkeypatch.setattr(interleaved_trial, "seconds", seconds)
    monkeypatch.setattr("spec_sdk_backends.measured_once.cache_root", lambda: tmp_path)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name=next(names), multi_processor_count=1)
    )

    def gains(dtype: torch.dtype = torch.float16) -> bool:
        interleaved_trial.gains.cache_clear()
        return interleaved_trial.gains(4, dtype, cpu)

    assert gains() and tried == [0.5, 1.0, 0.5, 1.0]
    names = iter(["GPU 0"])
    assert gains() and len(tried) == 4, "it is kept"
    assert not gains(torch.float32)
    names = iter(["GPU 1", "GPU 2", "GPU 3"])
    taken[InterleavedProjection] = 0.95
    assert not gains()
    taken[InterleavedProjection] = -1.0
    assert not gains()
    assert "4 bits fail on GPU 2, which are expanded: out of shared memory" in capsys.readouterr().err
    taken[InterleavedProjection] = 0.5
    wrong = InterleavedProjection.__call__
    monkeypatch.setattr(InterleavedProjection, "__call__", lambda made, x: 1.1 * wrong(made, x))
    assert not gains()


def test_the_backend_asks_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, and under ``deterministic``, weights stay in few bits only where it is asked for."""
    gpu, asked = torch.device("cuda", 1), list[Any]()

    def gains(*what: Any) -> bool:
        asked.append(what)
        return True

    monkeypatch.setattr(interleaved_trial, "gains", gains)
    assert TritonOps(device=gpu).fast_in_bits(5, torch.bfloat16)
    assert asked == [(5, torch.bfloat16, gpu)]
    assert not TritonOps().fast_in_bits(5, torch.bfloat16)
    assert not DeterministicOps(device=gpu).fast_in_bits(5, torch.bfloat16) and len(asked) == 1
