"""Greedy answers beside plain decoding's: near-ties are told from faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_sdk.bench import checking
from spec_sdk.bench.checking import Difference, difference, first_difference
from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.testing import plain_logits
from tests.support.tiny_decoder import tiny_executor

PROMPT = [1, 7, 9, 11, 30, 31]


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.fixture(scope="module")
def greedy() -> list[int]:
    """What the tiny model answers to PROMPT."""
    tokens: list[int] = []
    for _ in range(20):
        logits_WNV = plain_logits(tiny_executor(), PROMPT, [*tokens, 0], widths=(1,))
        tokens.append(int(logits_WNV[0, -1].argmax()))
    return tokens


def test_a_token_that_is_not_the_targets_is_no_tie(greedy: list[int]) -> None:
    executor = tiny_executor()
    assert difference(executor, PROMPT, greedy, greedy) is None
    for at in (0, 3, 19):
        wrong = [*greedy[:at], (greedy[at] + 1) % 96, *greedy[at + 1 :]]
        apart = difference(executor, PROMPT, wrong, greedy)
        assert apart is not None and apart.at == at and not apart.tie
        assert apart.gap is not None and apart.allowed is not None and 0 <= apart.allowed < 1e-3 < apart.gap


def test_an_answer_that_ends_early_is_no_tie(greedy: list[int]) -> None:
    assert difference(tiny_executor(), PROMPT, greedy[:5], greedy) == Difference(5)
    assert not Difference(5).tie


def with_logits(monkeypatch: pytest.MonkeyPatch, logits_WNV: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """Have these logits in the place of passes; the prompts and tokens that they were asked of."""
    asked: list[tuple[list[int], list[int]]] = []

    def logits(executor: Any, prompt: Sequence[int], tokens: Sequence[int], widths: Sequence[int]) -> torch.Tensor:
        asked.append((list(prompt), list(tokens)))
        return torch.tensor(logits_WNV)

    monkeypatch.setattr(checking, "plain_logits", logits)
    return asked


@pytest.mark.parametrize(("gap", "tie"), [(0.03, True), (0.05, False), (math.nan, False)])
def test_two_logits_are_tied_if_rounding_moves_them_as_far(
    monkeypatch: pytest.MonkeyPatch, gap: float, tie: bool
) -> None:
    # passes of two widths differ by 0.01 at most, so a pass may be off by 0.02, and move two logits apart by 0.04
    with_logits(monkeypatch, [[[0.0, 0.0, 0.0], [5.0, 5.0 + gap, 0.0]], [[0.01, 0.0, 0.0], [5.0, 5.0 + gap, 0.0]]])
    apart = difference(tiny_executor(), [4], [2, 0], [2, 1])
    assert apart is not None and apart.at == 1 and apart.tie is tie
    assert math.isnan(gap) or apart.allowed == pytest.approx(0.04, rel=1e-5)


def test_a_repetition_penalty_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 / 2 of token 0, which was there before, beside 2 of token 1, which was not; -1 · 2 of token 2
    with_logits(monkeypatch, [[[4.0, 2.0, -1.0]], [[4.0, 2.0, -1.0]]])
    tied = difference(tiny_executor(), [0, 2], [0], [1], repetition_penalty=2.0)
    assert tied is not None and tied.gap == 0 and tied.tie
    apart = difference(tiny_executor(), [0, 2], [2], [1], repetition_penalty=2.0)
    assert apart is not None and apart.gap == 4


def test_of_a_long_answer_the_last_steps_are_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = with_logits(monkeypatch, [[[0.0, 1.0, 0.0]] * 16] * 2)
    tokens = [2] * 30
    difference(tiny_executor(), [5, 6], [*tokens, 0], [*tokens, 1])
    assert asked == [([5, 6] + [2] * 15, [2] * 15 + [1])]


class OtherKernelForManyRows(TorchExecutor):
    """Wide passes round otherwise than narrow ones, which are equal to the bit."""

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        output = super().forward(inputs, cache, plan)
        off = 1e-3 if inputs.batch * inputs.width > 100 else 0.0
        rounded_BNV = (output.logits_BNV * 256).round() / 256
        return replace(output, logits_BNV=rounded_BNV + off)


def test_a_short_text_meets_the_kernels_of_wide_passes(greedy: list[int]) -> None:
    plain = tiny_executor()
    executor = OtherKernelForManyRows(plain.decoder, plain.ops)
    at = 3
    wrong = [*greedy[:at], (greedy[at] + 1) % 96, *greedy[at + 1 :]]
    apart = difference(executor, PROMPT, wrong, greedy)
    assert apart is not None and apart.allowed == pytest.approx(4e-3, rel=0.1)
