"""What tests/support/interpreter.py leaves out of Triton's interpreter changes no result and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from tests.support.interpreter import PatchOnce


@triton.jit
def doubled(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, 2 * x, x)


@triton.jit
def largest_of_rows_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * N + tl.arange(0, N))
    # a function of this file, and one of Triton's own library, which has other names for the language
    tl.store(out_ptr + row, tl.max(doubled(doubled(x)), 0) + tl.sum(doubled(x), 0))


def operations() -> list[object]:
    """Those of the language and of its tensors."""
    return [getattr(place, name) for place in (tl, tl.tensor) for name in sorted(dir(place)) if name != "__dict__"]


def test_launches_compute_the_same_and_leave_the_language_as_it_was(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime import interpreter  # type: ignore[import-untyped]

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
