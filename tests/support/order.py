"""Which files are begun first, so that no process is left alone with a long one at the end.

A pytest plugin, loaded by ``tests/conftest.py``. ``make test`` gives files to processes in the order of collection
(``--no-loadscope-reorder``; xdist's own order is by the number of tests, which has the long files of few tests last).
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

LONGEST = ("tests/docs/test_commands.py",)
"""Those that take more than ten seconds of a core, the longest first; no test knows of it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        place = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all the libraries stay until the end: looking again and again for what of them could go
    takes a third of collecting them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """The libraries' own looks at what was left over, at the end of the process, see all of it."""
    gc.unfreeze()
