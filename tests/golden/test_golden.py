"""Tokens and events of every pipeline are those that were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FULL
from tests.golden.cases import CASES, PROMPTS
from tests.golden.engine import run_case, write_model
from tests.golden.record import GOLDEN

NUMBERS = range(len(PROMPTS)) if FULL else (0, 3)
"""The prompt that repeats itself, and the one that ends at the context."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("golden")
    write_model(directory)
    return directory


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(GOLDEN.read_text())
    return recorded


def test_every_case_is_recorded(golden: dict[str, Any]) -> None:
    assert list(golden) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_events_are_the_recorded_ones(name: str, checkpoint: Path, golden: dict[str, Any]) -> None:
    answers = run_case(checkpoint, CASES[name], NUMBERS)
    for answer, expected in zip(answers, (golden[name][number] for number in NUMBERS), strict=True):
        assert answer["tokens"] == expected["tokens"]
        for cycle, expected_cycle in zip(answer["cycles"], expected["cycles"], strict=True):
            assert cycle == expected_cycle
        assert answer == expected
