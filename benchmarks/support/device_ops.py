"""The operations of a device's own backend, for benchmarks that run without one."""

from __future__ import annotations

import functools

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


@functools.cache
def command_line_ops(device: torch.device) -> Ops:
    """What a command line's run has on this device, which on a CPU are the native kernels, where they can be made."""
    if device.type == "cuda":
        return device_ops(device)
    from spec_sdk_backends.cpu import CpuBackend

    return CpuBackend(CpuBackend.Config()).ops
