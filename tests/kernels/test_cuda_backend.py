"""The cuda backend without a GPU, without triton, and (with invented answers from torch) with both."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk_backends import spec_sdk_plugins
from spec_sdk_backends.cuda import CudaBackend, CudaConfig
from tests.support.configured import plugin_of


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Torch answers as if it had one GPU; returns the calls it got."""
    calls: list[str] = []
    properties = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(f"set_device {device}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(f"synchronize {device}"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return calls


def test_no_gpu_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^backend=cuda: torch .* finds no CUDA device here, use backend=cpu$"):
        CudaBackend(CudaConfig())


def test_no_triton_is_one_clear_line(one_gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else real(name))
    message = "backend=cuda: triton is not installed: pip install 'spec-sdk[cuda]', or use backend=cpu"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        CudaBackend(CudaConfig())


@pytest.mark.parametrize(("index", "valid"), [(-1, "0 or more"), (1, "0 to 0: 1 GPUs are visible")])
def test_a_gpu_that_is_not_there(index: int, valid: str, one_gpu: list[str]) -> None:
    with pytest.raises(UserError, match=rf"^backend.index: {index} must be {valid}$"):
        plugin_of("backend", "cuda", index=index)


def test_device_ops_and_description(one_gpu: list[str]) -> None:
    pytest.importorskip("triton")
    backend = CudaBackend(CudaConfig())
    backend.synchronize()
    assert backend.device == torch.device("cuda", 0)
    assert type(backend.ops).__name__ == "TritonOps"
    assert backend.describe() == "Some GPU, 80 GiB"
    assert one_gpu == ["set_device cuda:0", "synchronize cuda:0"]


def test_listing_plugins_does_not_import_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("triton", "spec_sdk_backends.t"))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def guarded(name: str, *rest: object) -> object:
        assert name.split(".")[0] != "triton", "triton imported"
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert {"cpu", "cuda"} <= {plugin.name for plugin in spec_sdk_plugins()}
