"""Kernels run on the GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # triton decides when a kernel is defined, its own library functions included, so before it is first imported
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
