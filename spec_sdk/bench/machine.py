"""What of this machine the time of a pass depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

from spec_sdk.usable_cores import usable_cores

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How torch's threads wait for each other."""


def machine_facts(device: str) -> Mapping[str, Any]:
    """Plain data that is the same in every process that would measure the same. ``device``: in the backend's words."""
    return {
        "device": device,
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": len(usable_cores()),
        "threads": torch.get_num_threads(),
        "waiting": {name: os.environ.get(name) for name in WAITING},
        "torch": torch.__version__,
    }
