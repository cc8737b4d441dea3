"""Cases that only ``make test-full`` runs, by their names in ``tests/full_tier.txt``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "full_tier.txt"


def listed() -> list[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def mark(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Give the listed tests the mark ``full``. Raises UsageError for a name that no test has any more."""
    tests = {item.nodeid: item for item in items}
    names = listed()
    for name in names:
        if name in tests:
            tests[name].add_marker(pytest.mark.full)
    # where single tests were asked for, others of their files are not collected
    if not any("::" in argument for argument in config.args) and (gone := missing(names, tests)):
        raise pytest.UsageError(f"{LIST.name}: there is no test {gone[0]}")


def missing(names: Sequence[str], tests: Collection[str]) -> list[str]:
    """Of ``names`` those that no test has, in files that have any.

    >>> missing(["a.py::one[2]", "b.py::two"], ["a.py::one[1]"])
    ['a.py::one[2]']
    """
    files = {test.partition("::")[0] for test in tests}
    return [name for name in names if name.partition("::")[0] in files and name not in tests]
