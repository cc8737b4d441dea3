"""Native executors of random weights, and what they are compared with."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk_backends.cpu import CpuBackend, CpuConfig

CPU = torch.device("cpu")


def native_executor(kind: type[Decoder], source: TensorSource, dtype: torch.dtype, **options: Any) -> TorchExecutor:
    """The CPU backend's, whose decoder must be of this class."""
    executor = CpuBackend(CpuConfig(**options)).load(source, dtype)
    assert isinstance(executor, TorchExecutor) and type(executor.decoder) is kind
    return executor


def reference(source: TensorSource) -> TorchExecutor:
    """In float64."""
    return TorchExecutor(load_decoder(source, CPU, torch.float64), Ops())


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], limit: float) -> None:
    """``limit``: as a part of the largest number."""
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= limit * theirs.abs().max()
