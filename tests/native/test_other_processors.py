"""What the sources become for processors without AVX-512, or without its newer parts, computes the same weights, row by
row alone.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
from typing import Any

import pytest
import torch

from spec_sdk.model.compiler import processor
from spec_sdk.ops import PLAIN
from spec_sdk_backends.native import attention, folding, library, mixers, products, side_by_side
from spec_sdk_backends.native.products import multiply
from spec_sdk_backends.native.side_by_side import SideBySide
from tests.conftest import FULL
from tests.native.test_attention import BATCHES, KEPT, PATHS, SPECS, Kept, compare_with_float64, compare_with_paths
from tests.native.test_products import DTYPES, FORMS, quantized, random, sizes
from tests.native.test_recurrent import NAMES, compare_trees
from tests.native.test_rounded_rows import exactly_rounded

PROCESSORS = {"haswell": "avx2", "skylake-avx512": "avx512dq"}
"""By g++'s name, and what a processor has that runs programs for it."""


@pytest.fixture(scope="module", params=["haswell", pytest.param("skylake-avx512", marks=pytest.mark.full)])
def _kernels_for_others(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name = request.param
    there = processor().split() if platform.machine() == "x86_64" else []
    if PROCESSORS[name] not in there:
        pytest.skip(f"this processor does not run programs for {name}")
    path = tmp_path_factory.mktemp("kernels") / f"{name}.so"
    flags = [flag for flag in library.FLAGS if flag != "-march=native"] + [f"-march={name}"]
    if not FULL:
        # compiled in less than half of the time; what differs between processors is in the sources
        flags.append("-O1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "FLAGS", flags)
        compiler = next(name for name in library.compilers() if shutil.which(name))
        library._compile(compiler, path, library.openmp_runtimes()[0])
        loaded = ctypes.CDLL(str(path))
        library._declare(loaded)
        assert library._works(loaded)
        for module in (attention, folding, mixers, products, side_by_side):
            patch.setattr(module, "library", lambda: loaded)
        yield


@pytest.mark.usefixtures("_kernels_for_others")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", FORMS)
def test_quantized(bits: int, dtype: torch.dtype) -> None:
    matrix, x_NI = quantized(37, 1600, bits, True), random(9, 1600).to(dtype)
    held = SideBySide.of(matrix)
    assert torch.equal(held.dequantized(dtype), matrix.dequantized(dtype))
    for_kernel = held.matrix(None)
    alone = torch.cat([multiply(for_kernel, row[None]) for row in x_NI])
    expected = x_NI.double() @ matrix.dequantized(torch.float64).T
    size = sizes(matrix, x_NI)
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-6
    assert ((alone.double() - expected).abs() <= rounding * expected.abs() + 2e-6 * size).all()
    for rows in range(1, 10):
        assert torch.equal(multiply(for_kernel, x_NI[:rows]), alone[:rows]), rows


@pytest.mark.usefixtures("_kernels_for_others")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", FORMS)
def test_rounded_rows(bits: int, dtype: torch.dtype) -> None:
    matrix, x_NI = quantized(150, 1088, bits, True), random(9, 1088).to(dtype)
    held = SideBySide.of(matrix)
    for_kernel = held.matrix(None, rounds=True)
    alone = torch.cat([multiply(for_kernel, row[None]) for row in x_NI])
    rounded_NI = exactly_rounded(x_NI)
    expected = rounded_NI @ matrix.dequantized(torch.float32).double().T
    size = sizes(matrix, rounded_NI)
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-6
    assert ((alone.double() - expected).abs() <= rounding * expected.abs() + 4e-6 * size).all()
    for rows in range(1, 10):
        assert torch.equal(multiply(for_kernel, x_NI[:rows]), alone[:rows]), rows


@pytest.mark.usefixtures("_kernels_for_others")
@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_attention(name: str, kept: Kept) -> None:
    for spec in SPECS:
        compare_with_float64(name, spec, 3, 80, kept)


@pytest.mark.usefixtures("_kernels_for_others")
@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("shape", PATHS)
def test_attention_along_paths(shape: str, kept: Kept) -> None:
    compare_with_paths(101, PATHS[shape], kept, PLAIN)


@pytest.mark.usefixtures("_kernels_for_others")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_recurrent_layers(name: str, dtype: torch.dtype) -> None:
    compare_trees(name, 49, dtype)
