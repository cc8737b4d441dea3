"""Rows rounded to 8 bits: what is rounded and how, that the kernels multiply exactly that, and lossless pipelines.

Legend: N rows, I inputs, O outputs, G groups, J inputs of a group.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from spec_sdk.app import main
from spec_sdk.errors import UserError
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.executor import Executor
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.quantized import BITS
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk.ops.rounded_rows import rounded_rows
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.products import multiply
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from tests.native.test_deterministic import Checkpoint
from tests.native.test_products import DTYPES, FORMS, ROUNDING, ROWS, SHAPES, quantized, random, sizes
from tests.support.real_pipelines import bench_prompts, pipeline_of, settings_of, tokens_of

NEW_TOKENS = 32
FEW_BITS = ("model.weights=auto", "backend=cpu")


def exactly_rounded(x_NI: torch.Tensor) -> torch.Tensor:
    """The definition, number by number: in float32 up to the codes, then in float64."""
    rounded = torch.empty(x_NI.shape, dtype=torch.float64)
    for n, row in enumerate(x_NI.float()):
        for first in range(0, len(row), 32):
            group_J = row[first : first + 32]
            largest = group_J.abs().max()
            factor = torch.tensor(127.0) / largest if largest else torch.tensor(0.0)
            codes = [round(float(number * factor)) for number in group_J]
            rounded[n, first : first + 32] = float(largest / 127) * torch.tensor(codes, dtype=torch.float64)
    return rounded


def test_the_definition() -> None:
    x_NI = random(5, 96)
    x_NI[1, 32:64] = 0
    expected = exactly_rounded(x_NI)
    torch.testing.assert_close(rounded_rows(x_NI).double(), expected, rtol=1e-6, atol=0)
    assert (rounded_rows(x_NI)[1, 32:64] == 0).all()
    # halves are rounded to even codes
    halves = torch.tensor([[127.0, 0.5, 1.5, -2.5, *[0.0] * 28]])
    assert rounded_rows(halves)[0, :4].tolist() == [127.0, 0.0, 2.0, -2.0]
    # half a step at most, and all steps are used
    step_NG = x_NI.view(5, -1, 32).abs().amax(-1) / 127
    off_NGJ = (rounded_rows(x_NI) - x_NI).view(5, -1, 32).abs()
    assert (off_NGJ <= step_NG[..., None] * 0.500001).all() and (off_NGJ.amax(-1) >= 0.3 * step_NG).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", FORMS)
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_that_of_the_rounded_rows(
    shape: tuple[int, int], bits: int, offsets: bool, dtype: torch.dtype
) -> None:
    """Row by row the same, whatever rows are beside it; nothing is rounded but the sums."""
    matrix, bias_O = quantized(*shape, bits, offsets), random(shape[0]).to(dtype)
    projection = NativeQuantizedProjection(matrix, bias_O, rounds=True)
    x_NI = random(max(ROWS), shape[1]).to(dtype)
    alone = torch.cat([multiply(projection.matrix, row[None]) for row in x_NI])
    rounded_NI = exactly_rounded(x_NI)
    expected = F.linear(rounded_NI, matrix.dequantized(torch.float32).double(), bias_O.double())
    size = sizes(matrix, rounded_NI)
    assert ((alone.double() - expected).abs() <= ROUNDING[dtype] * expected.abs() + 4e-6 * size).all()
    for rows in ROWS:
        assert torch.equal(multiply(projection.matrix, x_NI[:rows]), alone[:rows]), rows
    # the reference is another way to the same
    reference = QuantizedProjection(matrix, bias_O, rounds=True)(x_NI)
    torch.testing.assert_close(reference, alone, rtol=0.02, atol=float(size.max()) * 0.01)
    if dtype == torch.float32:
        assert ((reference.double() - expected).abs() <= 1e-5 * size + 1e-5).all()


@pytest.mark.parametrize("bits", BITS)
def test_wide_passes_round_too(bits: int) -> None:
    projection = NativeQuantizedProjection(quantized(33, 64, bits), rounds=True)
    x_NI = random(most_rows(torch.float32, bits, True) + 1, 64)
    expected = F.linear(rounded_rows(x_NI), projection.weight_OI)
    torch.testing.assert_close(projection(x_NI), expected, rtol=1e-4, atol=1e-3)
    assert not torch.allclose(projection(x_NI), F.linear(x_NI, projection.weight_OI), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bits", FORMS)
def test_what_is_not_finite_is_not_hidden(bits: int, wrong: float, dtype: torch.dtype) -> None:
    projection = NativeQuantizedProjection(quantized(20, 96, bits), rounds=True)
    x_NI = random(3, 96).to(dtype)
    x_NI[1, 40] = wrong
    for found in (multiply(projection.matrix, x_NI), QuantizedProjection(projection.quantized, None, True)(x_NI)):
        assert not found[1].isfinite().any()
        assert found[[0, 2]].isfinite().all()
    rounded_NI = rounded_rows(x_NI)
    assert not rounded_NI[1, 32:64].isfinite().any() and rounded_NI[1, [*range(32), *range(64, 96)]].isfinite().all()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("activations", ["auto", "exact", "int8"])
def test_the_option_reaches_the_products(activations: str, native: bool) -> None:
    backend = CpuBackend(CpuConfig(native=native, activations=activations))
    projection = backend.ops.quantized_projection(quantized(16, 32, 4))
    assert isinstance(projection, NativeQuantizedProjection if native else QuantizedProjection)
    assert projection.rounds == (activations == "int8" or (activations == "auto" and native))


@pytest.mark.parametrize(
    ("family", "dtype", "rounds"),
    [
        ("smollm", torch.float32, True),
        ("smollm", torch.float16, False),
        ("gemma2", torch.float32, True),
        ("mixtral", torch.float32, True),
    ],
    ids=str,
)
def test_auto_rounds_where_whole_blocks_run_natively(family: str, dtype: torch.dtype, rounds: bool) -> None:
    """Elsewhere a row's last bits hang on the rows beside it, and would tip its codes."""
    for activations in ("auto", "int8", "exact"):
        backend = CpuBackend(CpuConfig(native=True, activations=activations))
        executor = backend.load(ChosenWeights(Checkpoint(family), "int4", lambda bits: True), dtype)
        assert isinstance(executor, TorchExecutor)
        stacks = [stack for layer in range(3) for stack in executor.decoder.stacks(layer, layer + 1)]
        parts = [*executor.decoder.projections, *(stack.qkv_projections[0] for stack in stacks)]
        found = {part.rounds for part in parts if isinstance(part, QuantizedProjection)}
        assert found == {rounds if activations == "auto" else activations == "int8"}, activations


@pytest.mark.parametrize("activations", ["auto", "int8", "exact"])
def test_auto_rounds_nothing_where_attention_is_predicted(activations: str) -> None:
    """Told before anything is loaded."""
    backend = CpuBackend(CpuConfig(native=True, activations=activations))
    backend.keep_rows_exact()
    assert backend.ops.rounds_rows is (activations == "int8")
    executor = backend.load(ChosenWeights(Checkpoint("smollm"), "int4", lambda bits: True), torch.float32)
    assert isinstance(executor, TorchExecutor)
    parts = [part for part in executor.decoder.projections if isinstance(part, QuantizedProjection)]
    assert parts and {part.rounds for part in parts} == {activations == "int8"}


def test_predicted_attention_that_is_not_accepted_is_plain_decoding() -> None:
    """With weights in few bits, whose rows plain decoding alone rounds."""
    predicted = pipeline_of(*FEW_BITS, "pipeline=alspec", "predictor.size=8", "attention_verifier.threshold=0")
    assert not predicted.backend.ops.rounds_rows
    plain = predicted.vanilla()
    for prompt in bench_prompts(predicted, 3, longest=400):
        assert tokens_of(predicted, prompt, NEW_TOKENS) == tokens_of(plain, prompt, NEW_TOKENS)


def test_predicted_attention_beside_rounded_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model that is loaded it is said; bounds, which are derivatives, are refused."""
    plain = pipeline_of(*FEW_BITS, "pipeline=vanilla")
    assert plain.backend.ops.rounds_rows and "rounded" not in capsys.readouterr().err
    settings = settings_of(*FEW_BITS, "pipeline=alspec")
    build_pipeline(settings, Registry.discover(), beside=plain)
    assert "threshold 0 is not plain decoding token by token; backend.activations=exact" in capsys.readouterr().err
    # no row of a dense model is rounded
    dense = pipeline_of("pipeline=vanilla", "backend=cpu")
    assert dense.backend.ops.rounds_rows and not dense.models.target.executor.rounds_rows
    build_pipeline(
        settings_of("model.weights=dense", "backend=cpu", "pipeline=alspec"), Registry.discover(), beside=dense
    )
    assert "rounded" not in capsys.readouterr().err
    with pytest.raises(UserError, match="error_bounds: rounded rows have no derivatives"):
        pipeline_of(*FEW_BITS, "pipeline=alspec", "backend.activations=int8", "error_bounds=true")


@pytest.mark.parametrize(("candidates", "exact"), [("[suffix]", False), ("[suffix,alspec]", True)])
def test_a_bench_of_predicted_attention_rounds_nothing(
    candidates: str, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for plain decoding, which is loaded first, and beside which the others stand."""
    loaded: list[bool] = []

    def load(self: CpuBackend, *arguments: Any) -> Executor:
        loaded.append(self.ops.rounds_rows)
        raise UserError("enough")

    monkeypatch.setattr(CpuBackend, "load", load)
    options = [f"task.pipelines={candidates}", "prompt=Hello", "backend=cpu", f"output_dir={tmp_path}"]
    assert main(["task=bench", *options]) == 2
    assert loaded == [not exact]


def test_auto_rounds_nothing_where_sums_go_over_ranks() -> None:
    for activations, rounds in (("auto", False), ("exact", False), ("int8", True)):
        backend = AccelerateBackend(AccelerateConfig(device="cpu", threads=1, activations=activations))
        assert backend.ops.rounds_rows is rounds


@functools.cache
def answers(name: str, *overrides: str) -> list[list[int]]:
    pipeline = pipeline_of(f"pipeline={name}", "backend=cpu", "backend.activations=int8", *overrides)
    return [tokens_of(pipeline, prompt, NEW_TOKENS) for prompt in bench_prompts(pipeline, 3, longest=400)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("easyspec_tree", "float32"),
        ("suffix", "bfloat16"),
        pytest.param("suffix", "float32", marks=pytest.mark.full),
        pytest.param("easyspec_tree", "bfloat16", marks=pytest.mark.full),
    ],
)
def test_the_tokens_of_plain_decoding(name: str, dtype: str) -> None:
    """Of decoding with the same rounding."""
    kept = ("model.weights=auto", f"model.dtype={dtype}")
    assert answers(name, *kept) == answers("vanilla", *kept)
