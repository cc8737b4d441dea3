"""Native products are linear, and a row's result depends on nothing beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from spec_sdk.model.block_tensors import form_of
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.quantized import BITS, QuantizedMatrix, middle_of
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends import measured_once
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.native import crossover, decoder, huge_pages, ops, products, whole_pass
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.panels import to_panels
from spec_sdk_backends.native.products import NativeProjection, NativeProjectionStack, multiply
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from spec_sdk_backends.native.side_by_side import SideBySide
from tests.support.tiny_decoder import ModelTensors

RNG = torch.Generator().manual_seed(5)
DTYPES = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""Half a unit in the last place of the result; sums are in float32."""
ROWS = [*range(1, 14), 16, 31, 64, 65]
# of quantised weights; the last one lies in bands and stretches
SHAPES = [(64, 96), (49, 32), (1, 64), (37, 544), (150, 1088)]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RNG)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


BY_LEVELS = 0
"""For bits: 4, whose codes stand for levels."""
FORMS = [*BITS, BY_LEVELS]


def quantized(outputs: int, inputs: int, bits: int, offsets: bool = True) -> QuantizedMatrix:
    """Random numbers; by levels there are no ``offsets``."""
    if bits == BY_LEVELS:
        levels = torch.randint(-128, 128, (16,), generator=RNG)
        levels[:2] = torch.tensor([-128, 127])
        return dataclasses.replace(quantized(outputs, inputs, 4, False), levels=tuple(levels.tolist()))
    scales = inputs // (16 if bits == 6 else 32)
    offset_OS = random(outputs, scales).half() * 8 if offsets else None
    if bits < 8:
        codes = torch.randint(0, 256, (outputs, inputs * bits // 8), generator=RNG).to(torch.uint8)
    else:
        codes = torch.randint(-128, 128, (outputs, inputs), generator=RNG).to(torch.int8)
    return QuantizedMatrix(codes, random(outputs, scales).half(), offset_OS)


def sizes(matrix: QuantizedMatrix, x_NI: torch.Tensor) -> torch.Tensor:
    """What a product's rounding is in proportion to [N, O].

    scale · Σ code·x and offset · Σ x are rounded each by itself, and may be larger than their sum.
    """
    largest_OS = matrix.scale_OG.double().abs() * 128
    if matrix.offset_OG is not None:
        largest_OS += matrix.offset_OG.double().abs()
    return F.linear(x_NI.double().abs(), largest_OS.repeat_interleave(matrix.inputs // largest_OS.shape[1], 1))


def close(found: torch.Tensor, x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> bool:
    """Whether ``found`` is x Wᵀ + b in float64, up to one rounding to its dtype and float32 sums."""
    expected = F.linear(x.double(), weight_OI.double(), None if bias_O is None else bias_O.double())
    size = F.linear(x.double().abs(), weight_OI.double().abs())
    off = (found.double() - expected).abs()
    return bool((off <= ROUNDING[found.dtype] * expected.abs() + 2e-6 * size).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(64, 96), (49, 36), (1, 8), (130, 257), (17, 1), (3, 33), (16, 63)], ids=str)
def test_dense(shape: tuple[int, int], biased: bool, dtype: torch.dtype, threads: int) -> None:
    """Against float64, for odd sizes too; every row comes out as it does alone."""
    weight_OI, bias_O = random(*shape).to(dtype), random(shape[0]).to(dtype) if biased else None
    projection = NativeProjection(weight_OI, bias_O)
    x_NI = random(max(ROWS), shape[1]).to(dtype)
    alone = torch.cat([multiply(projection.matrix, row[None]) for row in x_NI])
    assert close(alone, x_NI, weight_OI, bias_O)
    for rows in ROWS:
        assert torch.equal(multiply(projection.matrix, x_NI[:rows]), alone[:rows]), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", FORMS)
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantized(shape: tuple[int, int], bits: int, offsets: bool, dtype: torch.dtype, threads: int) -> None:
    """The product is that of the exact weights, row by row the same; odd numbers of groups too."""
    matrix, bias_O = quantized(*shape, bits, offsets), random(shape[0]).to(dtype)
    projection = NativeQuantizedProjection(matrix, bias_O)
    x_NI = random(max(ROWS), shape[1]).to(dtype)
    alone = torch.cat([multiply(projection.matrix, row[None]) for row in x_NI])
    exact_OSK = matrix.codes().view(*matrix.scale_OG.shape, -1).double() * matrix.scale_OG.double()[..., None]
    if matrix.offset_OG is not None:
        exact_OSK += matrix.offset_OG.double()[..., None]
    weight_OI = exact_OSK.view(shape)
    expected = F.linear(x_NI.double(), weight_OI, bias_O.double())
    size = sizes(matrix, x_NI)
    off = (alone.double() - expected).abs()
    assert (off <= ROUNDING[dtype] * expected.abs() + 2e-6 * size).all()
    for rows in ROWS:
        assert torch.equal(multiply(projection.matrix, x_NI[:rows]), alone[:rows]), rows
    torch.testing.assert_close(projection(x_NI), alone, rtol=0.02, atol=float(size.max()) * 0.01)
    # whole blocks of 16 outputs are kept
    kept = matrix.padded(-(-shape[0] // 16) * 16)
    assert (projection.outputs, projection.inputs, projection.nbytes) == (*shape, kept.nbytes)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_wide_passes_multiply_with_expanded_weights(bits: int, dtype: torch.dtype) -> None:
    """So do those of dtypes that the kernels lack."""
    projection = NativeQuantizedProjection(quantized(33, 64, bits, True))
    rows = 3 if dtype == torch.float16 else most_rows(dtype, bits) + 1
    x_NI = random(rows, 64).to(dtype)
    assert torch.equal(projection(x_NI), F.linear(x_NI, projection.weight_OI.to(dtype)))


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("bits", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_side_by_side_is_the_same_matrix(shape: tuple[int, int], bits: int, offsets: bool) -> None:
    matrix = quantized(*shape, bits, offsets)
    held = SideBySide.of(matrix)
    told = (held.bits, held.outputs, held.inputs, held.offsets)
    assert told == (matrix.bits, *shape, matrix.offset_OG is not None)
    plain = held.plain()
    assert plain.levels == matrix.levels
    assert torch.equal(plain.codes_OC, matrix.codes_OC) and torch.equal(plain.scale_OG, matrix.scale_OG)
    assert plain.offset_OG is None or (matrix.offset_OG is not None and torch.equal(plain.offset_OG, matrix.offset_OG))
    some = torch.tensor([shape[0] - 1, 0, 0, shape[0] // 2])
    for dtype in (*DTYPES, torch.float16):
        assert held.dequantized(dtype, some[:0]).shape == (0, shape[1])
        for rows in (None, slice(shape[0] // 3, shape[0]), some):
            assert torch.equal(held.dequantized(dtype, rows), matrix.dequantized(dtype, rows))
    for wrong in (torch.tensor([shape[0]]), torch.tensor([0, -1])):
        with pytest.raises(IndexError, match=f"of {shape[0]}$"):
            held.dequantized(torch.float32, wrong)


@pytest.fixture
def used_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are laid out in memory that held something before: what is filled up is written."""

    def taken(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.full((*shape, dtype.itemsize), 255, dtype=torch.uint8).view(dtype).squeeze(-1)

    monkeypatch.setattr(huge_pages, "empty", taken)


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_offsets_that_center_codes_are_not_kept(bits: int) -> None:
    """As of Q4_0 in other formats: what is read in every pass is a tenth less."""
    centred = quantized(49, 96, bits, False)
    told = QuantizedMatrix(centred.codes_OC, centred.scale_OG, centred.scale_OG * -middle_of(bits))
    held = SideBySide.of(told)
    assert not held.offsets and torch.equal(held.records_PGC, SideBySide.of(centred).records_PGC)
    assert torch.equal(held.dequantized(torch.float32), told.dequantized(torch.float32))
    # all of them
    assert told.offset_OG is not None
    told.offset_OG[40, 2] += 1
    assert SideBySide.of(told).offsets


@pytest.mark.usefixtures("used_memory")
@pytest.mark.parametrize("bits", BITS)
def test_outputs_that_fill_up_a_block_are_zeros(bits: int) -> None:
    records_PGC = SideBySide.of(quantized(17, 64, bits, True)).records_PGC[1]
    lines, factors = records_PGC[:, : bits * 64].view(2, bits, 16, 4), records_PGC[:, bits * 64 :].view(2, -1, 16, 2)
    assert lines[:, :, 0].any() and factors[:, :, 0].any()
    assert not lines[:, :, 1:].any() and not factors[:, :, 1:].any()


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_parts_of_other_tensors_are_laid_side_by_side(bits: int, offsets: bool) -> None:
    """As they lie in a checkpoint, behind others: at odd addresses, and factors that are not contiguous."""
    whole = quantized(40, 96, bits, offsets)
    codes = behind_another(whole.codes_OC)
    scale, offset = (None if part is None else part.T.contiguous().T for part in (whole.scale_OG, whole.offset_OG))
    assert scale is not None and codes.data_ptr() % 2 == 1 and not scale.is_contiguous()
    parts = QuantizedMatrix(codes, scale, offset)
    assert torch.equal(SideBySide.of(parts).records_PGC, SideBySide.of(whole).records_PGC)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_other_tensors_are_put_in_panels(dtype: torch.dtype) -> None:
    weight_OI = random(33, 8).to(dtype)
    behind = behind_another(weight_OI)
    assert behind.is_contiguous() and behind.data_ptr() % 8 == dtype.itemsize
    expected = to_panels(weight_OI, library())
    for same in (weight_OI.T.contiguous().T, behind, torch._neg_view(-weight_OI), torch.nn.Parameter(weight_OI)):
        assert torch.equal(to_panels(same, library()), expected)
    assert not to_panels(random(2, 0, 4), library()).numel()


def behind_another(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, contiguous, one number further on than memory begins."""
    return torch.cat((tensor.flatten()[:1], tensor.flatten()))[1:].view_as(tensor)


def test_weights_that_are_not_in_host_memory_are_refused() -> None:
    with pytest.raises(TypeError, match="meta"):
        to_panels(torch.empty(32, 64, device="meta"), library())
    matrix = quantized(32, 64, 4, True)
    with pytest.raises(TypeError, match="meta"):
        SideBySide.of(matrix.to(torch.device("meta")))
    with FakeTensorMode() as fake, pytest.raises(TypeError, match="FakeTensor"):
        to_panels(fake.from_tensor(torch.ones(16, 8)), library())


def test_rows_that_there_are_not() -> None:
    """A panel is filled up behind the last row."""
    made = NativeProjection(torch.randn(90, 64))
    assert made.rows(torch.tensor([89, 0])).shape == (2, 64)
    assert made.rows(torch.tensor([], dtype=torch.int64)).shape == (0, 64)
    for wrong in (90, 95, 96, -1):
        with pytest.raises(IndexError, match=f"row {wrong} of 90"):
            made.rows(torch.tensor([3, wrong]))


def test_a_tied_head_in_few_bits_is_the_embedding() -> None:
    """Tokens are looked up in the head's own memory, and the other layout is let go."""
    matrix = quantized(50, 64, 8, False)
    embedding = QuantizedEmbedding(matrix, torch.bfloat16)
    head = embedding.tied_head(NativeOps(Ops()))
    assert embedding.shared_by(head) and isinstance(embedding.matrix, SideBySide)
    assert embedding.nbytes == head.nbytes == matrix.padded(64).nbytes
    assert (embedding.width, embedding.dtype, embedding.device) == (64, torch.bfloat16, torch.device("cpu"))
    token_BN = torch.tensor([[0, 49, 7], [7, 31, 16]])
    assert torch.equal(embedding(token_BN), F.embedding(token_BN, matrix.dequantized(torch.bfloat16)))
    assert torch.equal(embedding.weight_VM, matrix.dequantized(torch.bfloat16))
    assert head.quantized is not None and torch.equal(head.quantized.plain().codes_OC, matrix.codes_OC)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_change_nothing(dtype: torch.dtype) -> None:
    projection, x_NI = NativeProjection(random(333, 160).to(dtype)), random(9, 160).to(dtype)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(projection(x_NI))
    torch.set_num_threads(1)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_shapes_and_layouts() -> None:
    """Leading dims stay; rows that are parts of longer ones, and transposed ones, are read as they lie."""
    weight_OI = random(21, 40)
    projection = NativeProjection(weight_OI)
    x = random(2, 3, 80)
    for part in (x[..., :40], x[:, 1:2, 40:], x[..., ::2], random(40, 6).T):
        torch.testing.assert_close(projection(part), F.linear(part, weight_OI), rtol=1e-4, atol=1e-4)
    assert projection(x[:0, :, :40]).shape == (0, 3, 21)


@pytest.mark.parametrize("bits", FORMS)
def test_other_dtypes_are_torchs(bits: int) -> None:
    matrix = quantized(20, 64, bits)
    x = random(3, 64).half()
    assert torch.equal(NativeQuantizedProjection(matrix)(x), QuantizedProjection(matrix)(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tied_head_holds_the_embedding(dtype: torch.dtype) -> None:
    """Tokens are looked up in the head's panels, which are then the only copy, however often a head is asked for."""
    weight_VM, token_BN = random(37, 65).to(dtype), torch.tensor([[0, 36, 15], [16, 16, 31]])
    embedding = Embedding(weight_VM)
    head = embedding.tied_head(NativeOps(CpuOps()))
    assert isinstance(head, NativeProjection) and embedding.shared_by(head)
    assert embedding.tied_head(NativeOps(CpuOps())) is head
    assert embedding._weight_VM is None and embedding.nbytes == head.nbytes
    assert torch.equal(embedding(token_BN), weight_VM[token_BN]) and torch.equal(embedding.weight_VM, weight_VM)
    assert (embedding.width, embedding.dtype, embedding.device) == (65, dtype, weight_VM.device)
    assert not embedding.shared_by(NativeProjection(weight_VM))


def test_other_heads_leave_the_embedding_its_matrix() -> None:
    embedding = Embedding(random(20, 64))
    assert embedding.shared_by(embedding.tied_head(Ops()))
    assert not embedding.shared_by(embedding.tied_head(CpuOps())) and embedding._weight_VM is not None


@pytest.mark.usefixtures("used_memory")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(30, 20), (16, 7), (33, 1)], ids=str)
def test_panels_are_the_matrix(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Put in panels and back to the bit; filled up with zeros; a stack's layers lie in the stack."""
    weight_LOI = random(3, *shape).to(dtype)
    panels = to_panels(weight_LOI, library())
    assert panels.shape[-2] * panels.shape[-1] * panels.element_size() == 64
    assert float(panels.double().sum()) == pytest.approx(float(weight_LOI.double().sum()))
    stack = NativeProjectionStack(weight_LOI)
    part = stack.layers(1, 3)
    for layer in range(2):
        lone, inside = stack[layer + 1], part[layer]
        assert torch.equal(lone.weight_OI, weight_LOI[layer + 1]) and (lone.outputs, lone.inputs) == shape
        assert isinstance(lone, NativeProjection) and isinstance(inside, NativeProjection)
        assert lone.matrix.weights == inside.matrix.weights
    assert NativeProjection(weight_LOI[0]).nbytes == panels[0].numel() * panels.element_size()


@pytest.mark.parametrize("biased", [False, True])
def test_a_stack_is_its_layers(biased: bool) -> None:
    weight_LOI, bias_LO = random(4, 10, 6), random(4, 10) if biased else None
    plain, native = ProjectionStack(weight_LOI, bias_LO), NativeProjectionStack(weight_LOI, bias_LO)
    for rows in (5, 65):
        x_gKI = random(2, rows, 6)
        torch.testing.assert_close(native.layers(1, 3)(x_gKI), plain.layers(1, 3)(x_gKI), rtol=1e-4, atol=1e-4)
    x_gKI = random(2, 5, 6)
    assert torch.equal(native.layers(1, 3)(x_gKI)[1], native[2](x_gKI[1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 192, 193, 480, 481, 700])
def test_prompts(rows: int, dtype: torch.dtype, threads: int) -> None:
    """Many rows are shared out among threads, a few have the outputs shared out: no bit of a row depends on it."""
    weight_OI, x_NI = random(50, 1100).to(dtype), random(rows, 1100).to(dtype)
    matrix = (projection := NativeProjection(weight_OI)).matrix
    found = multiply(matrix, x_NI)
    assert close(found, x_NI, weight_OI, None)
    some = [0, rows // 2, rows - 1]
    assert torch.equal(found[some], torch.cat([multiply(matrix, x_NI[row][None]) for row in some]))
    assert projection.outputs == 50


def test_rows_that_torch_multiplies_faster_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "most_rows", lambda dtype, bits, rounds: 64)
    weight_OI, wide = random(9, 7), random(65, 7)
    assert torch.equal(NativeProjection(weight_OI)(wide), Projection(weight_OI)(wide))
    monkeypatch.setattr(products, "multiply", lambda matrix, x: x[:, :1])
    assert torch.equal(NativeProjection(weight_OI)(wide[:64]), wide[:64, :1])


def test_what_was_measured_first_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process keeps its figure while this one measures: both go by the same, whoever asks in which words."""
    monkeypatch.setattr(measured_once, "cache_root", lambda: tmp_path)
    dtype = torch.float32

    def measured(*of: object) -> int:
        place = crossover._place(dtype, 4, False)
        place.parent.mkdir(exist_ok=True)
        place.write_text("128")
        return 512

    monkeypatch.setattr(crossover, "measure", measured)
    crossover._most_rows.cache_clear()
    try:
        assert most_rows(dtype, 4) == most_rows(dtype, 4, False) == most_rows(dtype, bits=4, rounds=False) == 128
        monkeypatch.setattr(crossover, "measure", lambda *of: 256)
        assert most_rows(dtype, 8) == 256
        crossover._place(dtype, 8, False).write_text("1024")
        assert most_rows(dtype, bits=8) == 256, "a process never changes its mind"
    finally:
        crossover._most_rows.cache_clear()


def test_derivatives_are_torchs() -> None:
    weight_OI = random(9, 7)
    x = random(2, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(NativeProjection(weight_OI)(x).sum(), x)
    torch.testing.assert_close(gradient, weight_OI.sum(0).expand(2, -1))
    x_gKI = random(3, 2, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(NativeProjectionStack(weight_OI.expand(3, -1, -1))(x_gKI).sum(), x_gKI)
    torch.testing.assert_close(gradient, weight_OI.sum(0).expand(3, 2, -1))


class InEightBits(ModelTensors):
    """A tiny model whose matrices are in 8 bits."""

    def quantized(self, name: str) -> QuantizedMatrix | None:
        weight = self.tensor(name)
        return quantize(weight, 8) if weight.dim() == 2 and weight.shape[1] % 32 == 0 else None


@pytest.mark.parametrize(("model", "bits"), [(ModelTensors, {0}), (InEightBits, {0, 8})])
def test_what_must_be_measured_is_measured_before_a_run(
    model: type[ModelTensors], bits: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[torch.dtype, int, bool]] = []

    def noted(dtype: torch.dtype, bits: int = 0, rounds: bool = False) -> int:
        asked.append((dtype, bits, rounds))
        return 64

    for module in (ops, products, decoder, whole_pass):
        monkeypatch.setattr(module, "most_rows", noted)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    executor = CpuBackend(CpuConfig()).load(model("smollm", 0, **sizes), torch.float32)
    before = set(asked)
    asked.clear()
    session = Session(executor)
    session.prefill(0, [1, 2, 3])
    session.feed([0], [[4]])
    assert asked and set(asked) <= before
    assert {each[1] for each in before} == bits


def test_the_form_of_weights_in_few_bits_is_that_of_the_weights_and_not_of_what_they_went_through() -> None:
    """Costs of passes are kept under it."""
    weights = [quantized(32, 64, bits, offsets) for bits in BITS for offsets in (False, True)]
    projections = [NativeQuantizedProjection(each, rounds=rounds) for each in weights for rounds in (False, True)]
    projections.append(NativeQuantizedProjection(quantized(32, 64, BY_LEVELS)))
    forms = [form_of(each) for each in projections]
    for each in projections:
        each(random(1, 64))
        each(random(65, 64))
    assert [form_of(each) for each in projections] == forms
    assert len(set(forms)) == len(projections)
