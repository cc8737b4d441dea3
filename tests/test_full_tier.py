"""The list of cases that only ``make test-full`` runs names tests that there are."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support import full_tier


def test_a_name_that_no_test_has_is_found() -> None:
    lines = ["tests/a.py::one[2]", "tests/b.py::two", "tests/a.py::three once"]
    there = [*full_tier.names_of("tests/a.py::one[2]"), *full_tier.names_of("tests/a.py::three[4]")]
    assert full_tier.missing(lines, there) == []
    assert full_tier.missing(lines, there[:2]) == ["tests/a.py::one[2]", "tests/a.py::three"]


@pytest.mark.parametrize("end", ["", full_tier.ONCE])
def test_a_list_with_such_a_name_is_refused(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    here = [item for item in request.session.items if item.nodeid.startswith("tests/test_full_tier.py")]
    monkeypatch.setattr(full_tier, "listed", lambda: [f"tests/test_full_tier.py::gone{end}"])
    monkeypatch.setattr(request.config, "args", ["tests"])
    with pytest.raises(pytest.UsageError, match="there is no test tests/test_full_tier.py::gone"):
        full_tier.mark(request.config, here)


def test_what_failed_is_not_looked_for_in_the_list(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_tier, "listed", lambda: ["tests/test_full_tier.py::gone", "tests/test_full_tier.py"])
    monkeypatch.setattr(request.config, "args", ["tests"])
    monkeypatch.setattr(request.config.option, "lf", True)
    full_tier.mark(request.config, [request.node])
    assert request.node.get_closest_marker("full") is None


def test_listed_cases_are_marked(request: pytest.FixtureRequest) -> None:
    """Those that are named; of those that are there once some stay."""
    lines = full_tier.listed()
    assert lines and len(lines) == len(set(lines))
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in request.session.items:
        for name in full_tier.names_of(item.nodeid):
            tests[name].append(item)
    for line in lines:
        full = [item.get_closest_marker("full") is not None for item in tests[line.removesuffix(full_tier.ONCE)]]
        assert not full or all(full) != line.endswith(full_tier.ONCE), line


def test_as_few_cases_stay_as_have_every_value_once() -> None:
    cases = [{"dtype": dtype, "rows": rows} for dtype in ("float32", "bfloat16") for rows in (1, 2, 3)]
    kept = full_tier.every_value_once(cases)
    assert len(kept) == 3
    assert {cases[number]["rows"] for number in kept} == {1, 2, 3}
    assert {cases[number]["dtype"] for number in kept} == {"float32", "bfloat16"}
    assert full_tier.every_value_once([{}, {}]) == set()
