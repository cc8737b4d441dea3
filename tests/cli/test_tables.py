"""Tables in the width there is: whole, with broken headers, or as lists."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from spec_sdk.tables import print_facts, print_table

Lines = Callable[[int | None], list[str]]
COLUMNS = ["job", "tokens per second", "rate", "result"]
ROWS = [["pipeline=vanilla", "12.50", "8.0 %", "ok"], ["pipeline=easyspec_paper", "7.25", "61.5 %", "bad input"]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """``lines(width)`` prints the table in so many columns; None: where nothing says how many there are."""

    def printed(width: int | None) -> list[str]:
        monkeypatch.delenv("COLUMNS", raising=False)
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))
        file = io.StringIO()
        print_table("two jobs", COLUMNS, ROWS, file)
        return [line.rstrip() for line in file.getvalue().splitlines()]

    return printed


def test_a_table_that_fits_has_a_line_per_row(lines: Lines) -> None:
    title, head, _, first, second, end = lines(None)
    assert title == "two jobs" and end == ""
    assert head.startswith("job ") and head.endswith("tokens per second    rate     result")
    assert first.split() == ["pipeline=vanilla", "12.50", "8.0", "%", "ok"]
    assert second.endswith("7.25  61.5 %  bad input")


def test_headers_and_the_last_column_break_first(lines: Lines) -> None:
    narrow = lines(48)
    assert max(map(len, narrow)) <= 48
    assert any(line.startswith("pipeline=easyspec_paper") for line in narrow)
    assert not any("tokens per second" in line for line in narrow) and any("tokens" in line for line in narrow)


@pytest.mark.parametrize("width", [44, 30, 10])
def test_without_room_rows_are_items_and_no_word_is_broken(lines: Lines, width: int) -> None:
    listed = lines(width)
    words = " ".join(listed).split()
    assert words[:4] == ["two", "jobs", "job", "pipeline=vanilla"]
    assert " ".join(words).endswith("job pipeline=easyspec_paper tokens per second 7.25; rate 61.5 %; result bad input")
    assert all(len(line) <= width or len(line.split()) == 1 for line in listed)


def test_facts_are_indented_below_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    file = io.StringIO()
    print_facts({"drafter": "easyspec (width=2, draft=null)", "policy": "fixed"}, file)
    assert file.getvalue() == "drafter  easyspec\n         (width=2,\n         draft=null)\npolicy   fixed\n"
