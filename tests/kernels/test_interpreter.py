"""What tests/support/interpreter.py leaves out of Triton's interpreter changes no result and leaves nothing behind, and
what it computes otherwise is right.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from triton.runtime import interpreter  # type: ignore[import-untyped]

from tests.support.interpreter import PatchOnce, found_once, matmul


@triton.jit
def doubled(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, 2 * x, x)


@triton.jit
def largest_of_rows_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * N + tl.arange(0, N))
    # a function of this file, and one of Triton's own library, which has other names for the language
    tl.store(out_ptr + row, tl.max(doubled(doubled(x)), 0) + tl.sum(doubled(x), 0))


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    at_NN = at[:, None] * N + at
    out_NN = tl.dot(tl.load(a_ptr + at_NN), tl.load(b_ptr + at_NN), input_precision="ieee")
    tl.store(out_ptr + at_NN, out_NN)


def test_a_row_of_a_product_is_the_same_anywhere(device: torch.device) -> None:
    """Where it is Triton's product: the order in which a row is added up does not go by its place in the tile."""
    a_NN, b_NN = torch.randn((2, 64, 64), generator=torch.Generator().manual_seed(0)).to(device)
    out_NN, moved_NN = torch.empty_like(a_NN), torch.empty_like(a_NN)
    product_kernel[(1,)](a_NN, b_NN, out_NN, N=64)
    torch.testing.assert_close(out_NN.double(), a_NN.double() @ b_NN.double(), atol=1e-4, rtol=1e-4)
    for places in (1, 7, 21, 40):
        product_kernel[(1,)](a_NN.roll(places, 0), b_NN, moved_NN, N=64)
        assert torch.equal(moved_NN, out_NN.roll(places, 0))


def test_products_of_integers_and_halves() -> None:
    """The dtype that is asked for is that of the sum; without one it is that of the factors."""
    numbers = np.random.default_rng(0)
    a, b = (
        numbers.integers(-128, 128, (2, 16, 32), dtype=np.int8),
        numbers.integers(-128, 128, (2, 32, 16), dtype=np.int8),
    )
    assert np.array_equal(matmul(a, b, np.int32), np.matmul(a, b, dtype=np.int32))
    made = matmul(a.astype(np.float16), b.astype(np.float16), np.float32)
    assert made.dtype == np.float32 and np.array_equal(made, np.matmul(a, b, dtype=np.int32))
    assert matmul(a.astype(np.float32), b.astype(np.float32)).dtype == np.float32


def test_a_number_s_type_is_found_once() -> None:
    asked = []

    def np_dtype(of: object) -> np.dtype[np.generic]:
        asked.append(of)
        return types[len(asked) - 1]

    types = (np.dtype(np.uint16), np.dtype(np.int32), np.dtype(np.uint64))
    found = found_once(np_dtype, tl.pointer_type)
    of = [
        tl.bfloat16,
        tl.block_type(tl.bfloat16, [4]),
        tl.int32,
        tl.block_type(tl.int32, [2, 2]),
        tl.pointer_type(tl.int32),
    ]
    assert [found(kind) for kind in of] == [types[i] for i in (0, 0, 1, 1, 2)]
    assert [interpreter._get_np_dtype(kind) for kind in of] == [types[i] for i in (0, 0, 1, 1, 2)]


@pytest.mark.parametrize("element", [tl.float32, tl.pointer_type(tl.int32)])
def test_what_hangs_on_a_shape_alone_is_shared(element: object) -> None:
    for sizes in ([4, 8], [8], [4, 8], [tl.constexpr(4), 8]):
        kind = tl.block_type(element, sizes)
        assert [int(size) for size in sizes] == list(kind.shape) and kind.numel == math.prod(kind.shape)
        assert kind.element_ty == element and str(kind) == f"<{kind.shape}, {element}>"
        block = tl.tensor("handle", kind)
        assert [size.value for size in block.shape] == list(kind.shape) and block.numel.value == kind.numel
        assert (block.handle, block.type, block.dtype) == ("handle", kind, element)
    assert tl.block_type(element, [4, 8]) == tl.block_type(element, (4, 8))
    assert tl.block_type(element, [4, 8]) != tl.block_type(element, [8, 4])
    for _ in range(2):
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(element, [4, 3])
        with pytest.raises(TypeError, match="forbidden"):
            tl.block_type(element, [])


def test_single_values_are_unwrapped_at_once() -> None:
    unwrap, block = tl.core._unwrap_if_constexpr, tl.tensor("handle", tl.int32)
    for of in (1, True, 2.5, "name", None, block, tl.float16):
        assert unwrap(of) is of and unwrap(tl.constexpr(of)) is of
    assert unwrap([tl.constexpr(1), (2, tl.constexpr(3))]) == [1, (2, 3)]
    assert list(unwrap(tl.tuple([tl.constexpr(4), 5]))) == [4, 5]


def operations() -> list[object]:
    """Those of the language and of its tensors."""
    return [getattr(place, name) for place in (tl, tl.tensor) for name in sorted(dir(place)) if name != "__dict__"]


def test_launches_compute_the_same_and_leave_the_language_as_it_was(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type != "cpu":
        pytest.skip("needs Triton's interpreter")
    once = interpreter._patch_lang
    assert isinstance(once, PatchOnce)
    patched = []

    def counting(fn: object) -> object:
        patched.append(fn)
        return found(fn)

    found = once.patch
    monkeypatch.setattr(once, "patch", counting)
    before = operations()
    x = torch.randn((5, 8), generator=torch.Generator().manual_seed(0))
    twice = torch.where(x > 0, 2 * x, x)
    expected = torch.where(twice > 0, 2 * twice, twice).amax(1) + twice.sum(1)
    for launches in (1, 2):
        out = torch.empty(5)
        largest_of_rows_kernel[(5,)](x, out, N=8)
        torch.testing.assert_close(out, expected)
        # once for the kernel, once for the library's functions
        assert len(patched) == 2 * launches and not once.replaced
        assert operations() == before


def test_a_launch_that_fails_does_not_leave_the_next_one_without(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("needs Triton's interpreter")
    x, out = torch.ones((1, 8)), torch.empty(1)
    with pytest.raises(Exception, match="power of 2"):
        largest_of_rows_kernel[(1,)](x, out, N=7)
    largest_of_rows_kernel[(1,)](x, out, N=8)
    assert float(out) == 4 + 16
