"""How many programs share the keys of a block of rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

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
