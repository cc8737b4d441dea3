"""Kernels run on the GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.support import interpreter

if not torch.cuda.is_available():
    interpreter.install()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
