"""Linear layers packed for the CPU compute what plain ones compute, in whole decoders too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection, ProjectionStack, SeparateProjections
from spec_sdk.tree import TokenTree
from spec_sdk_backends import cpu
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.packed_projections import PackedProjection, can_pack
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import ModelTensors

RNG = torch.Generator().manual_seed(5)
TOKENS = torch.randint(3, VOCABULARY, (24,), generator=RNG).tolist()
TREE = TokenTree.chain(TOKENS[20], TOKENS[21:])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RNG)


@pytest.fixture(autouse=True)
def _packing() -> None:
    if not can_pack(torch.float32):
        pytest.skip("this machine's torch does not pack linear layers")


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [(1,), (1, 1), (2,), (7,), (1, 33), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("shape", [(64, 48), (49, 36), (1, 8), (130, 257)], ids=str)
def test_packed_is_linear(shape: tuple[int, int], rows: tuple[int, ...], biased: bool) -> None:
    weight_OI, bias_O = random(*shape), random(shape[0]) if biased else None
    packed, x = PackedProjection(weight_OI, bias_O), random(*rows, shape[1])
    expected = torch.nn.functional.linear(x.double(), weight_OI.double(), None if bias_O is None else bias_O.double())
    found = packed(x)
    assert found.shape == expected.shape and found.dtype == x.dtype
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    # a single row goes the way of many
    one = x.reshape(-1, shape[1])[:1]
    assert torch.equal(packed(one), packed(one.repeat(2, 1))[:1])


def test_the_plain_matrix_comes_back_to_the_bit() -> None:
    weight_OI = random(130, 57)
    packed = PackedProjection(weight_OI)
    assert torch.equal(packed.weight_OI, weight_OI) and packed.weight_OI.layout == torch.strided
    assert (packed.outputs, packed.inputs, packed.nbytes) == (130, 57, 130 * 57 * 4)


def test_a_derivative_can_be_taken() -> None:
    weight_OI, x = random(9, 7), random(2, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(PackedProjection(weight_OI)(x).sum(), x)
    torch.testing.assert_close(gradient, weight_OI.sum(0).expand(2, -1))


@pytest.mark.parametrize("biased", [False, True])
def test_a_stack_is_its_layers(biased: bool) -> None:
    weight_LOI, bias_LO = random(4, 10, 6), random(4, 10) if biased else None
    plain, packed = Ops().projections(weight_LOI, bias_LO), CpuOps().projections(weight_LOI, bias_LO)
    assert isinstance(packed, SeparateProjections) and len(packed) == len(plain) == 4
    x_gKI = random(2, 5, 6)
    torch.testing.assert_close(packed.layers(1, 3)(x_gKI), plain.layers(1, 3)(x_gKI))
    torch.testing.assert_close(packed[2](x_gKI[1]), plain.layers(1, 3)(x_gKI)[1])


def loaded(name: str, ops: Ops) -> Decoder:
    return load_decoder(ModelTensors(name, 0, num_hidden_layers=6), torch.device("cpu"), torch.float32, ops)


@pytest.mark.parametrize("name", ["smollm", "llama2", "biased_llama", "qwen2", "qwen3"])
def test_a_packed_decoder_is_the_plain_one(name: str) -> None:
    """Prefill, a tree pass, and layer-parallel groups; also of a cut that skips layers."""
    logits = []
    for ops in (Ops(), CpuOps()):
        decoder = loaded(name, ops)
        runners: list[Any] = [None, LayerParallelRunner.of([[0], [1, 2, 3, 4], [5]])]
        for model, runner in [(decoder, runners[0]), (decoder, runners[1]),
                              (decoder.subset([0, 2, 3, 5]), LayerParallelRunner.of([[0, 1, 2], [3]]))]:  # fmt: skip
            session = Session(TorchExecutor(model, ops), runner)
            session.prefill(0, TOKENS[:20])
            logits.append(session.score([0], [TREE])[0].logits_NV)
    for plain, packed in zip(logits[:3], logits[3:], strict=True):
        assert (plain - packed).abs().max() <= 1e-5 * plain.abs().max()


def test_it_can_be_turned_off_and_gives_way_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_OI = random(8, 8)
    assert type(CpuBackend(CpuConfig(native=False)).ops.projection(weight_OI)) is PackedProjection
    assert type(CpuBackend(CpuConfig(pack_weights=False)).ops.projection(weight_OI)) is Projection
    monkeypatch.setattr(cpu, "can_pack", lambda dtype: False)
    assert type(CpuOps().projection(weight_OI)) is Projection
    assert type(CpuOps().projections(weight_OI[None])) is ProjectionStack


def test_a_dtype_that_cannot_be_packed_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise RuntimeError("not on this machine")

    assert not can_pack(torch.float64)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", refuse)
    can_pack.cache_clear()
    try:
        assert not can_pack(torch.float32)
    finally:
        can_pack.cache_clear()
