"""Products by AMX: rounded rows get the bits of the other instructions, bfloat16 those of a row alone; and where AMX is
not used all is as without it.

Legend: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native import crossover, products, side_by_side
from spec_sdk_backends.native import library as kernels
from spec_sdk_backends.native.library import AMX, library, use_amx, uses_amx
from spec_sdk_backends.native.products import NativeProjection, multiply
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from tests.native.test_products import BY_LEVELS, DTYPES, close, quantized, random, sizes
from tests.native.test_rounded_rows import exactly_rounded

MOST = 70
"""Rows: more than one native call takes of those in few bits."""


@contextmanager
def amx(wanted: bool) -> Iterator[None]:
    """Products use AMX, or do not; skips where they cannot."""
    before = uses_amx()
    if use_amx(library(), wanted) != wanted:
        pytest.skip("no AMX here: of the processor, of the compiler, or lent by the system")
    try:
        yield
    finally:
        use_amx(library(), before)


@pytest.fixture(autouse=True)
def _amx() -> Iterator[None]:
    with amx(True):
        yield


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8, BY_LEVELS])
@pytest.mark.parametrize("offsets", [False, True])
# one group, odd numbers of groups, more groups than are unpacked at once, and outputs that are not whole blocks
@pytest.mark.parametrize("shape", [(64, 96), (49, 32), (1, 64), (37, 544), (16, 1088), (20, 2080)], ids=str)
def test_rounded_rows_get_the_same_bits(
    shape: tuple[int, int], bits: int, offsets: bool, dtype: torch.dtype, threads: int
) -> None:
    matrix, bias_O = quantized(*shape, bits, offsets), random(shape[0]).to(dtype)
    projection = NativeQuantizedProjection(matrix, bias_O, rounds=True)
    x_NI = random(MOST, shape[1]).to(dtype)
    counts = range(1, MOST + 1) if threads == 2 else (1, 8, 9, 11, 17, 40, 64, MOST)
    with amx(False):
        expected = [multiply(projection.matrix, x_NI[:rows]) for rows in counts]
    for rows, found in zip(counts, expected, strict=True):
        assert torch.equal(multiply(projection.matrix, x_NI[:rows]), found), rows
    rounded_NI = exactly_rounded(x_NI[:3])
    exact = F.linear(rounded_NI, matrix.dequantized(torch.float32).double(), bias_O.double())
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-6
    off = (expected[-1][:3].double() - exact).abs()
    assert (off <= rounding * exact.abs() + 4e-6 * sizes(matrix, rounded_NI)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_sums_of_whole_numbers(bits: int) -> None:
    """All codes and inputs at their ends: 32 · 127 · 128 of a group."""
    matrix = quantized(32, 128, bits, False)
    matrix.codes_OC.fill_(255 if bits == 4 else -128)
    projection = NativeQuantizedProjection(matrix, rounds=True)
    x_NI = torch.ones(20, 128)
    x_NI[1::2] = -1
    found = multiply(projection.matrix, x_NI)
    with amx(False):
        assert torch.equal(multiply(projection.matrix, x_NI), found)
    code = 15 if bits == 4 else -128
    expected = code * 32 * matrix.scale_OG.double().sum(1)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-3)
    assert torch.equal(found[1], -found[0])


@pytest.mark.parametrize("biased", [False, True])
# steps and tiles that are not whole, more inputs than are taken at once, and panels that are not whole
@pytest.mark.parametrize(
    "shape", [(64, 96), (49, 36), (1, 8), (130, 257), (17, 1), (3, 33), (16, 63), (80, 1100), (5, 2048)], ids=str
)
def test_bfloat16(shape: tuple[int, int], biased: bool, threads: int) -> None:
    """Against float64; every row comes out as it does alone, in any number of rows and on any thread."""
    weight_OI = random(*shape).bfloat16()
    bias_O = random(shape[0]).bfloat16() if biased else None
    projection, x_NI = NativeProjection(weight_OI, bias_O), random(MOST, shape[1]).bfloat16()
    alone = torch.cat([multiply(projection.matrix, row[None]) for row in x_NI])
    assert close(alone, x_NI, weight_OI, bias_O)
    for rows in range(1, MOST + 1) if threads == 2 else (2, 15, 16, 17, 33, 64, MOST):
        assert torch.equal(multiply(projection.matrix, x_NI[:rows]), alone[:rows]), rows
    later = multiply(projection.matrix, x_NI[40:])
    assert torch.equal(later, alone[40:])


def test_bfloat16_is_multiplied_by_amx() -> None:
    """What the test above is about: other instructions add up in another order."""
    projection, x_NI = NativeProjection(torch.ones(16, 96).bfloat16()), torch.zeros(1, 96).bfloat16()
    # ones that are lost beside a large number, unless a tile's products are added up before
    x_NI[0, 0], x_NI[0, 32:64:2], x_NI[0, 64] = 2.0**24, 1.0, -(2.0**24)
    assert (multiply(projection.matrix, x_NI) == 16).all()
    with amx(False):
        assert (multiply(projection.matrix, x_NI) == 0).all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("row", [0, 8, 16])
def test_a_row_that_is_not_finite_stays_alone(row: int, wrong: float) -> None:
    """In a tile that is filled up, too: 17 rows are two of nine."""
    x_NI = random(17, 70).bfloat16()
    x_NI[row, 69] = wrong
    others = [n for n in range(17) if n != row]
    dense, few_bits = NativeProjection(random(20, 70).bfloat16()), quantized(20, 96, 8, False)
    found = multiply(dense.matrix, x_NI)
    assert not found[row].isfinite().any() and found[others].isfinite().all()
    x_NI = F.pad(x_NI, (0, 26))
    projection = NativeQuantizedProjection(few_bits, rounds=True)
    found = multiply(projection.matrix, x_NI)
    assert not found[row].isfinite().any() and found[others].isfinite().all()


def test_weights_that_are_not_finite_stay_in_their_panel() -> None:
    """Steps of the next panel are no part of a tile that is not whole."""
    weight_OI = random(48, 40).bfloat16()
    weight_OI[16:32] = math.inf
    projection, x_NI = NativeProjection(weight_OI), random(20, 40).bfloat16()
    found = multiply(projection.matrix, x_NI)
    assert found[:, :16].isfinite().all() and found[:, 32:].isfinite().all()
    assert not found[:, 16:32].isfinite().any()


def test_torchs_own_tiles_do_not_disturb() -> None:
    """Its library shapes the tiles of the same threads for itself, before and after."""
    dense, x_NI = NativeProjection(random(96, 160).bfloat16()), random(40, 160).bfloat16()
    few_bits = NativeQuantizedProjection(quantized(96, 160, 4), rounds=True)
    a, b = random(256, 512).bfloat16(), random(512, 256).bfloat16()
    expected = (multiply(dense.matrix, x_NI), multiply(few_bits.matrix, x_NI), a @ b)
    for rows in (3, 17, 40):
        for _ in range(3):
            assert torch.equal(a @ b, expected[2])
            assert torch.equal(multiply(dense.matrix, x_NI[:rows]), expected[0][:rows])
            assert torch.equal(multiply(few_bits.matrix, x_NI[:rows]), expected[1][:rows])


def test_what_torch_is_faster_at_is_measured_for_both() -> None:
    by_amx = crossover._place(torch.bfloat16, 0, False)
    with amx(False):
        assert crossover._place(torch.bfloat16, 0, False) != by_amx


def test_it_is_told() -> None:
    backend = CpuBackend(CpuConfig(native=True))
    assert backend.describe().endswith("native kernels with AMX")
    with amx(False):
        assert backend.describe().endswith("native kernels")


CODE = """
import torch
from spec_sdk_backends.diagnosis import _amx
from spec_sdk_backends.native.library import uses_amx
from spec_sdk_backends.native.products import NativeProjection, multiply
x_NI = torch.arange(20 * 40).remainder(7).view(20, 40).bfloat16()
projection = NativeProjection(x_NI)
print(uses_amx(), _amx(), float(multiply(projection.matrix, x_NI).sum()))
"""


@pytest.mark.parametrize(
    ("value", "says"), [("0", "False ; without AMX: SPEC_SDK_AMX=0 "), ("1", "True ; products by AMX ")]
)
def test_the_variable_turns_it_off(value: str, says: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, AMX: value}, capture_output=True, text=True, check=True
    )
    x_NI = torch.arange(20 * 40).remainder(7).view(20, 40).bfloat16()
    assert run.stdout == f"{says}{float((x_NI @ x_NI.T).sum())}\n"


def few_bits_differ(loaded: Any) -> bool:
    """Whether some rounded row of a wrong library gets other bits by AMX than without."""
    x_NI, differ = random(40, 2080), False
    for bits in (4, 8):
        projection = NativeQuantizedProjection(quantized(32, 2080, bits), rounds=True)
        found = []
        for wanted in (False, True):
            use_amx(loaded, wanted)
            found.append(multiply(projection.matrix, x_NI))
        differ |= not torch.equal(*found)
    return differ


def bfloat16_differs(loaded: Any) -> bool:
    """Whether some row of a wrong library gets other bits beside others than alone, or is no product."""
    use_amx(loaded, True)
    weight_OI, x_NI = random(32, 1100).bfloat16(), random(40, 1100).bfloat16()
    projection = NativeProjection(weight_OI)
    together = multiply(projection.matrix, x_NI)
    alone = torch.cat([multiply(projection.matrix, row[None]) for row in x_NI])
    return not torch.equal(together, alone) or not close(alone, x_NI, weight_OI, None)


WRONG_KERNELS = {
    "every part of the groups has the first one's rows": (
        "rounded_amx.h",
        "int64_t at = start * rows.count + first",
        "int64_t at = first",
        few_bits_differ,
    ),
    "negative codes in 8 bits have another sign": (
        "rounded_amx.h",
        "_mm512_set1_epi8(0x7F)",
        "_mm512_set1_epi8(char(0xFF))",
        few_bits_differ,
    ),
    "sums are read before they are those of their group": (
        "rounded_amx.h",
        "add_group<R, OFFSETS>(wholes[of % SUMS_KEPT]",
        "add_group<R, OFFSETS>(wholes[g % SUMS_KEPT]",
        few_bits_differ,
    ),
    "inputs of a tile that is not whole are left out": (
        "panels_amx.h",
        "std::min<int64_t>(TILE_INPUTS, inputs - k * TILE_INPUTS)",
        "(inputs - k * TILE_INPUTS) / TILE_INPUTS ? TILE_INPUTS : 0",
        bfloat16_differs,
    ),
    "more inputs than are taken at once begin anew": (
        "panels_amx.h",
        "rows, steps, start == 0, to, y_panel);",
        "rows, steps, true, to, y_panel);",
        bfloat16_differs,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_wrong_kernels_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, old, new, found = WRONG_KERNELS[name]
    shutil.copytree(kernels.SOURCE, tmp_path / "source")
    source = (tmp_path / "source" / file).read_text()
    assert source.count(old) == 1
    assert not found(library())
    (tmp_path / "source" / file).write_text(source.replace(old, new))
    monkeypatch.setattr(kernels, "SOURCE", tmp_path / "source")
    monkeypatch.setattr(kernels, "FLAGS", [*kernels.FLAGS, "-O1"])
    compiler = next(path for path in kernels.compilers() if shutil.which(path))
    kernels._compile(compiler, tmp_path / "wrong.so", kernels.openmp_runtimes()[0])
    loaded = ctypes.CDLL(str(tmp_path / "wrong.so"))
    kernels._declare(loaded)
    for module in (products, side_by_side):
        monkeypatch.setattr(module, "library", lambda: loaded)
    assert found(loaded)
