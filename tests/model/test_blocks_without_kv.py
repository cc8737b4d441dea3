"""A prompt's rows pass through no block behind the last one whose K and V others see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.varied_decoder import VariedDecoder
from spec_sdk.ops import Ops
from tests.support.tiny_decoder import tiny_decoder

OWN, ALL = 5, 8
"""Blocks of the tiny model that make K and V, and all of them."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last block of each pass."""
    ends: list[int] = []
    plain = SequentialRunner.run

    def noted(self: SequentialRunner, decoder: Any, *others: Any) -> torch.Tensor:
        ends.append(decoder.layers if self.end is None else self.end)
        return plain(self, decoder, *others)

    monkeypatch.setattr(SequentialRunner, "run", noted)
    return ends


@pytest.mark.parametrize(("taps", "end"), [((), OWN), ((2,), OWN), ((6,), 6), ((3, ALL), ALL)], ids=str)
def test_what_is_tapped_is_computed(taps: Sequence[int], end: int, ran: list[int]) -> None:
    executor = TorchExecutor(tiny_decoder("gemma4_small"), Ops())
    session, whole = Session(executor), Session(executor)
    hidden = session.prefill(0, list(range(3, 43)), taps)
    assert ran == [end]
    assert all(hidden[layer].shape == (40, executor.config.hidden_size) for layer in taps)
    expected = whole.prefill_scored(0, list(range(3, 43)), taps)
    assert all(torch.equal(hidden[layer], expected.hidden[layer]) for layer in taps)
    ran.clear()
    session.feed([0], [[50, 51]])
    assert ran == [ALL]
    assert session.length(0) == 42


def test_a_state_that_no_block_leaves_is_none_more(ran: list[int]) -> None:
    session = Session(TorchExecutor(tiny_decoder("gemma4_small"), Ops()))
    with pytest.raises(KeyError):
        session.prefill(0, [5, 6], (ALL + 1,))
    assert ran == [ALL]


def test_the_logits_behind_are_the_same() -> None:
    executor = TorchExecutor(tiny_decoder("gemma4_small"), Ops())
    short, whole = Session(executor), Session(executor)
    short.prefill(0, list(range(3, 43)))
    whole.prefill_scored(0, list(range(3, 43)))
    a, b = (session.feed([0], [[50]])[0].full_KV for session in (short, whole))
    assert torch.equal(a, b)


def test_of_a_part_of_the_blocks_it_is_the_last_that_makes_them() -> None:
    decoder = tiny_decoder("gemma4_small")
    assert isinstance(decoder, VariedDecoder) and decoder.blocks_with_kv == OWN
    assert decoder.subset([0, 2, 5, 7]).blocks_with_kv == 2
    assert tiny_decoder("gemma4").blocks_with_kv == ALL and tiny_decoder("smollm").blocks_with_kv == 5
