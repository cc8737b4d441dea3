"""Kernels run on the GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_sdk.model.step_clock import HostClock
from spec_sdk.testing import repeated
from tests.support import interpreter

if not torch.cuda.is_available():
    interpreter.install()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class RepeatedCapture:
    """In the place of ``GraphCapture``: what is captured is computed again."""

    def __init__(self, device: torch.device) -> None:
        self.captures, self.failure = 0, ""

    def __call__(self, run: Callable[[], Any]) -> Any:
        self.captures += 1
        return repeated(run)


@pytest.fixture
def interpreted_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA backend whose tensors lie in host memory, where its kernels are interpreted."""
    pytest.importorskip("triton")
    from spec_sdk_backends import cuda, interleaved_trial

    properties = SimpleNamespace(name="Interpreter", total_memory=2**30, major=9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(cuda, "GraphCapture", RepeatedCapture)
    monkeypatch.setattr(interleaved_trial, "gains", lambda bits, dtype, device: False)
    monkeypatch.setattr(cuda.CudaBackend, "device", property(lambda self: torch.device("cpu")))
    monkeypatch.setattr(cuda.CudaBackend, "clock", lambda self: HostClock())
