"""Cases that only ``make test-full`` runs, by their names in ``tests/full_tier.txt``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).parents[1] / "full_tier.txt"
ONCE = " once"
"""Behind a name: of its cases the first tier has as few as have every value of every parameter."""


def listed() -> list[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def mark(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Give the listed tests the mark ``full``. Raises UsageError for a name that no test has any more.

    Not with ``--last-failed``: of those that failed all are to run once more, and no others are collected.
    """
    if config.getoption("lf", False):
        return
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        for name in names_of(item.nodeid):
            tests[name].append(item)
    # first those that are named, so that none of them is what stays of others
    for line in sorted(listed(), key=lambda line: line.endswith(ONCE)):
        # no entry is made for a name that no test has
        found = tests.get(line.removesuffix(ONCE), [])
        if line.endswith(ONCE):
            here = [item for item in found if isinstance(item, pytest.Function) and not item.get_closest_marker("full")]
            kept = every_value_once([item.callspec.params for item in here])
            found = [item for number, item in enumerate(here) if number not in kept]
        for item in found:
            item.add_marker(pytest.mark.full)
    # where single tests were asked for, others of their files are not collected
    if not any("::" in argument for argument in config.args) and (gone := missing(listed(), tests)):
        raise pytest.UsageError(f"{LIST.name}: there is no test {gone[0]}")


def names_of(test: str) -> Iterator[str]:
    """Its file, its function, and the test itself.

    >>> [*names_of("a.py::one[2]")]
    ['a.py', 'a.py::one', 'a.py::one[2]']
    """
    yield test.partition("::")[0]
    yield test.partition("[")[0]
    if "[" in test:
        yield test


def missing(lines: Sequence[str], names: Collection[str]) -> list[str]:
    """Of what ``lines`` name that which no test has, in files that have any.

    >>> missing(["a.py::one[2]", "b.py::two", "a.py::one once"], ["a.py", "a.py::one", "a.py::one[1]"])
    ['a.py::one[2]']
    """
    wanted = [line.removesuffix(ONCE) for line in lines]
    return [name for name in wanted if name.partition("::")[0] in names and name not in names]


def every_value_once(cases: Sequence[Mapping[str, Any]]) -> set[int]:
    """The numbers of as few cases as have every value of every parameter: always the one with most new ones.

    >>> sorted(every_value_once([{"a": a, "b": b} for a in (0, 1, 2) for b in "xy"]))
    [0, 3, 4]
    """
    values = [{(name, repr(value)) for name, value in case.items()} for case in cases]
    left, kept = set[tuple[str, str]]().union(*values), set[int]()
    while left:
        best = max(range(len(cases)), key=lambda number: len(values[number] & left))
        kept.add(best)
        left -= values[best]
    return kept
