"""How many programs share the keys of a block of rows."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk_backends.speculative_attention import share_of_window
from spec_sdk_backends.tree_attention import MAX_SPLITS, Tiling, choose_splits, combine_splits, combining

H100 = SimpleNamespace(multi_processor_count=132, shared_memory_per_multiprocessor=228 * 1024)
RTX_4090 = SimpleNamespace(multi_processor_count=128, shared_memory_per_multiprocessor=100 * 1024)
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("programs", "key_blocks", "splits"),
    [
        (16, 1000, 33),
        (18, 1000, 29),
        (1, 1000, MAX_SPLITS),
        (8, 32, 10),
        (8, 5, 1),
        (500, 9000, 1),
    ],
)
def test_enough_programs_with_enough_keys(
    programs: int, key_blocks: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of D = 128: four programs fit on a multiprocessor at once, and have 96 keys in blocks of 32 or more."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H100)
    tiling = Tiling.choose(1, 128, BF16)
    assert choose_splits(programs, key_blocks, torch.device("cuda"), tiling, BF16) == splits


@pytest.mark.parametrize(
    ("rows", "head_dim", "gpu", "at_once"), [(17, 64, H100, 2), (4096, 128, H100, 2), (17, 128, RTX_4090, 1)]
)
def test_programs_that_do_not_fit_beside_each_other_are_not_counted(
    rows: int, head_dim: int, gpu: SimpleNamespace, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice four warps take all registers of a multiprocessor; 70 KiB twice are more than some have shared memory."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    tiling = Tiling.choose(rows, head_dim, BF16)
    splits = choose_splits(8, 10**6, torch.device("cuda"), tiling, BF16)
    assert splits == at_once * gpu.multi_processor_count // 8


def test_the_interpreter_takes_no_splits() -> None:
    assert choose_splits(1, 1000, torch.device("cpu"), Tiling.choose(1, 128, BF16), BF16) == 1


@pytest.mark.parametrize(
    ("rows", "elements", "of_program", "warps"),
    [(1, 512, 1, 4), (511, 512, 1, 4), (2048, 512, 8, 4), (2048, 4096, 2, 4), (10**6, 512, 16, 4), (64, 16384, 1, 8)],
)
def test_rows_of_a_program_that_combines(rows: int, elements: int, of_program: int, warps: int) -> None:
    """About as many programs as 256 to 511, as far as one holds their parts in registers."""
    assert combining(rows, elements) == (of_program, warps)


@pytest.mark.parametrize("at_once", [1, 7, 16])
def test_programs_combine_several_rows(at_once: int, device: torch.device) -> None:
    """Parts of rows that fill their programs, or do not, and rows that saw no key in some split, or in none."""
    rows, splits, D = 37, 3, 24
    part_SRD, lse_SR = torch.randn(splits, rows, D, device=device), torch.randn(splits, rows, device=device)
    lse_SR[1, ::3], lse_SR[:, 5] = float("-inf"), float("-inf")
    out_RD = torch.full((rows, D), float("nan"), device=device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spec_sdk_backends.tree_attention.COMBINING_PROGRAMS", -(-rows // at_once))
        combine_splits(part_SRD, lse_SR, out_RD)
    weight_SR1 = (lse_SR.double() * math.log(2)).softmax(0).nan_to_num()[..., None]
    torch.testing.assert_close(out_RD.double(), (weight_SR1 * part_SRD).sum(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_tiles_overlap_loads_with_work_unless_many_programs_do(head_dim: int, dtype: torch.dtype) -> None:
    for rows in (1, 17, 33, 100, 4096):
        tiling = Tiling.choose(rows, head_dim, dtype)
        assert 16 <= tiling.rows <= 128 and tiling.head_dim >= head_dim
        many = rows == 4096 and tiling.resident(dtype.itemsize, 227 * 1024) > 1
        assert tiling.stages >= (2 if many else 3)


@pytest.mark.parametrize(("size", "share"), [(128, 1), (256, 2), (512, 4)])
def test_the_windows_programs_have_the_load_of_the_others(size: int, share: int) -> None:
    """8K keys and one tree slot in blocks of 64 over 32 splits: 4 blocks for each, with the odd one 5."""
    window, middle = 2 * size // 64 + 1, (8192 - 2 * size) // 64
    assert share_of_window(window, middle, 32) == share
    assert -(-window // share) == 5
    assert -(-middle // (32 - share)) == 4


def test_a_short_window_in_a_long_context_takes_one_split() -> None:
    assert share_of_window(5, 2044, 32) == 1
    assert share_of_window(5, 1, 1) == 1
