"""What several parts of the program say in the same words: errors in a line, durations, paths into nested options."""

from __future__ import annotations

import pytest

from spec_sdk.bench.candidate import CandidateError
from spec_sdk.config.nested import leaves, value_at
from spec_sdk.duration import duration
from spec_sdk.errors import PluginFault, UserError, in_a_line, message_of


@pytest.mark.parametrize(
    ("error", "line", "message"),
    [
        (UserError("model.dtype: 'x'\n  is none"), "model.dtype: 'x' is none", "model.dtype: 'x' is none"),
        (PluginFault("drafter 'a': no tree"), "drafter 'a': no tree", "drafter 'a': no tree"),
        (CandidateError("tired"), "tired", "tired"),
        (ValueError("two\nlines"), "ValueError: two lines", "two lines"),
        (ValueError(" "), "ValueError", "ValueError"),
    ],
)
def test_an_error_in_a_line(error: Exception, line: str, message: str) -> None:
    assert (in_a_line(error), message_of(error)) == (line, message)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (89, "89 s"), (90, "2 min"), (89 * 60, "89 min"), (12000, "3 h 20 min"), (7199, "2 h 0 min")],
)
def test_a_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_leaves_and_what_lies_at_their_paths() -> None:
    node = {"a": {"b": 1, "c": {"d": [2]}}, "e": None, "f": {}}
    found = dict(leaves(node))
    assert found == {"a.b": 1, "a.c.d": [2], "e": None, "f": {}}
    assert all(value_at(node, path) == value for path, value in found.items())
    assert value_at(node, "a.b.c") is None and value_at(node, "g.h") is None
