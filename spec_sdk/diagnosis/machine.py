"""The machine and the versions on it, as far as they do not depend on a backend."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

import spec_sdk
from spec_sdk.bench.machine import processor_name
from spec_sdk.contracts import Finding
from spec_sdk.counted import counted
from spec_sdk.installed import installed_version
from spec_sdk.model.compiler import no_compiler, processor
from spec_sdk.tables import size
from spec_sdk.usable_cores import usable_cores
from spec_sdk.version import __version__

SHOWN = ("triton", "transformers", "tokenizers", "safetensors", "accelerate", "huggingface-hub", "numpy", "hydra-core")
INSTRUCTIONS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve"),
)
"""What kernels gain from, as /proc/cpuinfo names it: x86, then ARM."""
LITTLE_MEMORY, LITTLE_DISK = 2 << 30, 2 << 30
"""Bytes under which models soon do not fit."""
LIMITS_OF_MEMORY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def versions() -> Iterator[Finding]:
    """Of Python, of this package and of those it stands on."""
    yield Finding("spec-sdk", f"{__version__} in {Path(spec_sdk.__file__).parent}")
    yield Finding("python", f"{platform.python_version()}, {sys.executable}")
    yield Finding("system", platform.platform())
    built = next((f"{name} {found}" for name, found in _built_for().items() if found), "CPU only")
    yield Finding("torch", f"{torch.__version__} ({built})")
    for name in SHOWN:
        yield Finding(name, installed_version(name) or "not installed")


def _built_for() -> dict[str, str | None]:
    return {"CUDA": torch.version.cuda, "ROCm": getattr(torch.version, "hip", None)}


def machine() -> Iterator[Finding]:
    """Processor, cores and memory."""
    cores, all_cores = len(usable_cores()), os.cpu_count() or 1
    may = "" if cores == all_cores else f", of which this process may use {cores}"
    yield Finding("processor", f"{processor_name()}, {platform.machine()}, {counted(all_cores, 'core')}{may}")
    flags = set(processor().split())
    known = [name for name in INSTRUCTIONS if name in flags]
    yield Finding(
        "instructions", f"{' '.join(known) or 'unknown'}; torch uses {torch.backends.cpu.get_cpu_capability()}"
    )
    libraries: Any = {"oneDNN": torch.backends.mkldnn, "MKL": torch.backends.mkl}
    there = [name for name, library in libraries.items() if library.is_available()]
    yield Finding("torch's libraries", ", ".join(there) or f"none of {', '.join(libraries)}")
    missing = no_compiler()
    advice = "install g++ or clang++ (Debian: apt-get install g++)" if missing else ""
    yield Finding("compiled passes", missing or "a compiler for them is there", advice)
    yield from _memory()


def _memory() -> Iterator[Finding]:
    memory, limit = psutil.virtual_memory(), _limit_of_memory()
    limited = limit is not None and limit < memory.total
    total = f"{size(memory.available)} of {size(memory.total)} available"
    text = f"{total}; this process is limited to {size(limit or 0)}" if limited else total
    scarce = min(memory.available, limit or memory.available) < LITTLE_MEMORY
    yield Finding(
        "memory", text, "end other programs, or choose a small model and model.weights=int8" if scarce else ""
    )


def _limit_of_memory() -> int | None:
    """Of this process's container, in bytes; None without one."""
    for name in LIMITS_OF_MEMORY:
        try:
            return int(Path(name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return None


def disk(what: str, place: Path) -> Finding:
    """How much is free where ``place`` is, or would be made."""
    existing = next(d for d in (place, *place.absolute().parents) if d.is_dir())
    free = shutil.disk_usage(existing).free
    advice = f"free some of it, or use another place than {place}" if free < LITTLE_DISK else ""
    return Finding(what, f"{size(free)} free at {existing}", advice)
