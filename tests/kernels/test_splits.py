"""How many programs share the keys of a block of rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk_backends.speculative_attention import share_of_window
from spec_sdk_backends.tree_attention import MAX_SPLITS, MIN_KEY_BLOCKS_PER_SPLIT, choose_splits


@pytest.mark.parametrize(
    ("programs", "key_blocks", "splits"),
    [
        (8, 1000, 32),
        (9, 1000, 16),
        (1, 1000, MAX_SPLITS),
        (8, 4 * MIN_KEY_BLOCKS_PER_SPLIT, 4),
        (8, 3, 1),
        (500, 9000, 1),
    ],
)
def test_enough_programs_with_enough_keys(
    programs: int, key_blocks: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert choose_splits(programs, key_blocks, torch.device("cuda")) == splits


def test_the_interpreter_takes_no_splits() -> None:
    assert choose_splits(1, 1000, torch.device("cpu")) == 1


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
