"""The operations of a device's own backend, for benchmarks that run without one."""

from __future__ import annotations

import torch

from spec_sdk.ops import Ops


def device_ops(device: torch.device) -> Ops:
    """Triton's on a GPU, packed linear layers on a CPU."""
    # imported here and not above: machines without a GPU need not have triton
    if device.type == "cuda":
        from spec_sdk_backends.triton_ops import TritonOps

        return TritonOps()
    from spec_sdk_backends.cpu import CpuOps

    return CpuOps()
