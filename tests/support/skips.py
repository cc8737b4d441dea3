"""A test may be skipped for what a machine cannot have, never for want of a file or of a package: that is a failure.

A pytest plugin, loaded by ``tests/conftest.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest
import torch

CUDA = "needs a CUDA device"
INTERPRETER = "needs Triton's interpreter"
ALLOWED = (
    CUDA,
    INTERPRETER,  # where there is a GPU, kernels run there
    "this machine's torch does not pack linear layers",
    "this system does not tell cores apart",
    "this system makes no network namespaces",  # not root, or no iproute2
    "needs a browser",
    "no AMX here",
    "this processor does not run programs for",
    "nothing can be compiled here",  # whether that is so is tested
    "needs the extra eval",  # 470 MB, which make test does without
    "needs the extra fuzz",  # 40 MB: schemathesis
    "needs the extra ray",  # 270 MB, and another cloudpickle than joblib's newest
    "needs the library speculators",  # which wants another transformers than ours
    "needs an unpacked wheel of vLLM",  # which brings CUDA when it is installed
    *([] if sys.platform == "linux" else ["could not import 'triton'"]),
)

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason=INTERPRETER)
"""For what lives on the CPU, where kernels run interpreted alone."""


def judged(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of ``report`` if it is a skip for a reason that is not in :data:`ALLOWED`."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(ALLOWED):
            report.outcome = "failed"
            report.longrepr = f"skipped, and not for the machine's sake ({__name__}.ALLOWED): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judged(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judged(report)
    return report
