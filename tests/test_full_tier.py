"""The list of cases that only ``make test-full`` runs names tests that there are."""

from __future__ import annotations

import pytest

from tests.support import full_tier


def test_a_name_that_no_test_has_is_found() -> None:
    names = ["tests/a.py::one[2]", "tests/b.py::two"]
    assert full_tier.missing(names, ["tests/a.py::one[1]"]) == ["tests/a.py::one[2]"]
    assert full_tier.missing(names, ["tests/a.py::one[2]", "tests/b.py::two"]) == []


def test_listed_cases_are_marked(request: pytest.FixtureRequest) -> None:
    listed = full_tier.listed()
    assert listed and len(listed) == len(set(listed))
    here = [item for item in request.session.items if item.nodeid in listed]
    assert all(item.get_closest_marker("full") is not None for item in here)
