"""An xdist worker whose GPU context is broken ends, so that another one takes its place.

After an illegal access every call of the process fails, and so would each test that it still had. The test that broke
it is told twice: as failed, and as the one that the worker ended in.
"""

from __future__ import annotations

import os

import pytest
import torch

_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    # by now the reports are sent
    if "PYTEST_XDIST_WORKER" in os.environ and nodeid in _failed and is_broken():
        os._exit(1)


def is_broken() -> bool:
    """Whether the process has a context that answers no more; other errors are gone once they are raised."""
    return torch.cuda.is_initialized() and _fails() and _fails()


def _fails() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
