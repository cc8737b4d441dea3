"""The machine that something is measured on: what its times depend on, and what a report says of it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.contracts.backend import Backend
from spec_sdk.installed import installed_version
from spec_sdk.source_commit import source_commit
from spec_sdk.usable_cores import usable_cores

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How torch's threads wait for each other."""


def machine_facts(hardware: str) -> Mapping[str, Any]:
    """Plain data that is the same in every process that would measure the same.

    ``hardware``: in the backend's words, or :func:`hardware_name` where there is no backend.
    """
    return {
        "machine": hardware,
        "architecture": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": len(usable_cores()),
        "threads": torch.get_num_threads(),
        "waiting": {name: os.environ.get(name) for name in WAITING},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed_version("triton"),
        "cuda": torch.version.cuda,
    }


def run_facts(backend: Backend) -> dict[str, Any]:
    """Where a run ran, for its results: those of :func:`machine_facts` by which runs are told apart, the system, and of
    a checkout its commit.
    """
    facts = machine_facts(backend.hardware)
    return {
        "device": backend.describe(),
        "hardware": backend.hardware,
        **{name: facts[name] for name in ("cores", "threads", "python", "torch")},
        "platform": platform.platform(),
        "commit": source_commit(),
    }


def device_facts(device: torch.device) -> dict[str, Any]:
    """:func:`machine_facts` for what uses a device without a backend, and the device's type."""
    return {**machine_facts(hardware_name(device)), "device": device.type}


def hardware_name(device: torch.device) -> str:
    """The GPU's name, or the processor's with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor_name()}, {torch.get_num_threads()} threads"


def processor_name() -> str:
    """The processor's own name where the system tells it, else its kind."""
    try:
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return str(names[0]).strip() if names else platform.processor() or platform.machine()


def slug(name: str) -> str:
    """The name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
