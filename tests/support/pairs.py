"""Of all combinations of three either-or choices the four that have every pair of values; the full tier has all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def every_pair(*choices: Sequence[Any]) -> list[Any]:
    """Parameters for all combinations of three times two values, half of them with the mark ``full``."""
    assert [len(values) for values in choices] == [2, 2, 2]
    return [
        pytest.param(
            *(values[place] for values, place in zip(choices, places, strict=True)),
            marks=[pytest.mark.full] * (sum(places) % 2),
        )
        for places in itertools.product((0, 1), repeat=3)
    ]
