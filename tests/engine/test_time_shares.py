"""A pass's time is divided so that a draft costs a request what it adds, and no more."""

from __future__ import annotations

import pytest

from spec_sdk.engine.time_shares import TimeShares


def seconds(rows: int) -> float:
    """A pass of many rows takes hardly longer than one of few."""
    return 1 + 0.01 * rows


def test_alone_a_request_takes_all() -> None:
    assert TimeShares().divided(3.0, [7]) == [3.0]


def test_requests_of_as_many_rows_take_as_much() -> None:
    shares = TimeShares()
    for _ in range(3):
        assert shares.divided(2.0, [1, 1, 1, 1]) == pytest.approx([0.5] * 4)
    assert shares.divided(0.0, [1, 1, 1, 1]) == pytest.approx([0.0] * 4)


def test_a_draft_costs_what_it_adds() -> None:
    shares = TimeShares()
    for rows in (4, 12, 8, 20) * 4:
        shares.divided(seconds(rows), [rows - 3, 1, 1, 1])
    divided = shares.divided(seconds(12), [9, 1, 1, 1])
    assert sum(divided) == pytest.approx(seconds(12))
    assert divided[1:] == pytest.approx([0.25 + 0.01] * 3, rel=0.01)
    assert divided[0] == pytest.approx(0.25 + 0.09, rel=0.01)


def test_other_numbers_of_requests_are_learned_apart() -> None:
    shares = TimeShares()
    for rows in (4, 12, 8, 20) * 4:
        shares.divided(seconds(rows), [rows - 3, 1, 1, 1])
    assert shares.divided(1.0, [3, 1]) == pytest.approx([0.25 + 3 / 8, 0.25 + 1 / 8])
