"""Launches that begin while the one before ends (programmatic dependent launch, since compute capability 9.0).

A kernel with OVERLAPPED lets the next one begin at once (``gdc_launch_dependents``), and waits for the one before
(``gdc_wait``) before it reads or writes what another kernel may write or read. What it does until then, such as asking
for weights, costs no time. A launch of any other kernel waits for all of the one before.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

SINCE = 9
"""The compute capability."""


@functools.cache
def overlapped(device: torch.device) -> dict[str, Any]:
    """What such a kernel is launched with there besides."""
    if device.type != "cuda" or torch.cuda.get_device_properties(device).major < SINCE:
        return {"OVERLAPPED": False}
    return {"OVERLAPPED": True, "launch_pdl": True}
