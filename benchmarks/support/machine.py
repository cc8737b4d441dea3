"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        name = names[0] if names else name
    return f"{name}, {torch.get_num_threads()} threads"


def slug(name: str) -> str:
    """The name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def facts(device: torch.device) -> dict[str, object]:
    """Machine, versions and threads, for a report."""
    return {
        "machine": device_name(device),
        "device": device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
