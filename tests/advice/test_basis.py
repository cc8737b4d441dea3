"""Advice that rests on few prompts says so, and what would give it more."""

from __future__ import annotations

import pytest

from spec_sdk.advice.telling import basis


@pytest.mark.parametrize(
    ("answered", "asked", "said"),
    [
        (1, 35, "This rests on 1 prompt of 35, for which the time sufficed: give more of it by task.seconds, or fewer"),
        (3, 4, "This rests on 3 prompts of 4, for which"),
        (1, 1, "This rests on 1 prompt, and others may differ much: give more by prompt_file."),
    ],
)
def test_few_prompts_are_told(answered: int, asked: int, said: str) -> None:
    [line] = basis(answered, asked)
    assert line.startswith(said)


def test_enough_are_not() -> None:
    assert basis(4, 35) == basis(4, 4) == []
