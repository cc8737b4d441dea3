"""Weights lie in pages of 2 MiB, and their memory goes when they do."""

from __future__ import annotations

import gc
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends.native import huge_pages
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.panels import to_panels
from spec_sdk_backends.native.side_by_side import SideBySide

asks = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages to ask for")


@pytest.fixture(autouse=True)
def own_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_current", None)


def flags_at(tensor: torch.Tensor) -> list[str]:
    """What Linux says of the memory that a tensor begins in."""
    lines, inside = Path("/proc/self/smaps").read_text().splitlines(), False
    for line in lines:
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= tensor.data_ptr() < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("the tensor lies nowhere")


@asks
def test_weights_lie_one_behind_the_other() -> None:
    first = huge_pages.empty((3, 5), torch.float32)
    second = huge_pages.empty((7,), torch.bfloat16)
    assert first.data_ptr() % huge_pages.PAGE == 0
    assert second.data_ptr() == first.data_ptr() + huge_pages.ALIGNMENT
    assert first.shape == (3, 5) and second.dtype == torch.bfloat16
    first.fill_(1.0), second.fill_(2.0)
    assert first.eq(1.0).all() and second.eq(2.0).all()


@asks
def test_a_tensor_without_room_begins_the_next_region() -> None:
    most = huge_pages.REGION - huge_pages.PAGE
    tensors = [huge_pages.empty((most,), torch.uint8) for _ in range(2)]
    assert all(tensor.data_ptr() % huge_pages.PAGE == 0 for tensor in tensors)
    ends = sorted((tensor.data_ptr(), tensor.data_ptr() + most) for tensor in tensors)
    assert ends[0][1] <= ends[1][0]


@asks
def test_what_is_larger_than_a_region_has_its_own() -> None:
    small = huge_pages.empty((4,), torch.uint8)
    large = huge_pages.empty((huge_pages.REGION + 1,), torch.uint8)
    after = huge_pages.empty((4,), torch.uint8)
    assert large.data_ptr() % huge_pages.PAGE == 0
    assert after.data_ptr() == small.data_ptr() + huge_pages.ALIGNMENT
    large[-1] = 3


@asks
def test_memory_goes_with_the_last_of_its_tensors() -> None:
    first, second = (huge_pages.empty((4,), torch.uint8) for _ in range(2))
    region = huge_pages._current
    assert region is not None
    del first
    gc.collect()
    assert region.memory() is not None
    del second
    gc.collect()
    assert region.memory() is None
    assert huge_pages.empty((4,), torch.uint8).numel() == 4


@asks
@pytest.mark.skipif(
    not (Path("/proc/self/smaps").exists() and Path("/sys/kernel/mm/transparent_hugepage").exists()),
    reason="a kernel without huge pages, or one that does not say where they are",
)
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_ask_for_huge_pages(bits: int) -> None:
    weight_OI = torch.randn(32, 64)
    assert "hg" in flags_at(to_panels(weight_OI, library()))
    assert "hg" in flags_at(SideBySide.of(quantize(weight_OI, bits)).records_PGC)


@asks
def test_what_the_system_is_set_to_and_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried, empty = list[int](), huge_pages.empty

    def noted(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        memory = empty(shape, dtype)
        address = memory.data_ptr()
        lines = [f"{address:x}-{address + memory.numel():x} rw-p 0", "Size: 9 kB", "AnonHugePages:      8192 kB"]
        before = [f"{address - 4096:x}-{address:x} rw-p 0", "AnonHugePages:      4096 kB"]
        (tmp_path / "smaps").write_text("\n".join([*before, *lines]))
        tried.append(memory.numel())
        return memory

    monkeypatch.setattr(huge_pages, "empty", noted)
    monkeypatch.setattr(huge_pages, "MAPS", tmp_path / "smaps")
    monkeypatch.setattr(huge_pages, "SETTING", tmp_path / "enabled")
    assert huge_pages.setting() is None
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    assert huge_pages.setting() == "madvise"
    assert huge_pages.given() == 0.25
    monkeypatch.setattr(huge_pages, "MAPS", tmp_path / "absent")
    assert huge_pages.given() is None
    assert tried == [huge_pages.REGION + 1] * 2


def test_other_systems_have_memory_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert huge_pages.empty((3, 5), torch.float32).shape == (3, 5)
    assert huge_pages._current is None


@asks
def test_no_memory_is_said_as_torch_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **options: object) -> mmap.mmap:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(RuntimeError, match="no memory for 15 bytes: Cannot allocate memory"):
        huge_pages.empty((3, 5), torch.uint8)
