"""What all tests share: how much to count, and how many threads to take."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

FULL = os.environ.get("SPEC_SDK_TEST_FULL") == "1"

torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture(scope="session")
def scale() -> Callable[[int, int], int]:
    """``scale(small, full)``: the count to use, ``full`` under ``make test-full``."""
    return lambda small, full: full if FULL else small
