"""What the backends find on a machine, for ``task=doctor``: compilers and kernels, threads, GPUs, processes."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from spec_sdk.contracts import Finding
from spec_sdk.model.compiler import processor
from spec_sdk.ranks import launched_processes
from spec_sdk_backends.core_use import granted_cpus, read_core_times
from spec_sdk_backends.native import huge_pages, library
from spec_sdk_backends.native.crossover import ANY, most_rows
from spec_sdk_backends.openmp_runtime import CPUS_AT_START
from spec_sdk_backends.thread_waiting import ASLEEP, ENVIRONMENT, TAKEN

LOOK_S = 0.5
"""Seconds over which the use of the cores is measured."""
MOST_GIVEN = 0.5
"""Where less memory than this part of it gets large pages, something is in the way."""
PINNING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_MADE_BY = re.compile(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+")


def cpu_findings() -> Iterator[Finding]:
    """Compilers, native kernels, and what threads have to reckon with."""
    yield from _compilers()
    yield from _native_kernels()
    yield large_pages(huge_pages.setting(), huge_pages.given())
    runtimes = library.openmp_runtimes()
    several = "unset LD_PRELOAD, or install one torch: threads of two runtimes share the cores"
    yield Finding("OpenMP", ", ".join(runtimes) or "no runtime is seen", several if len(runtimes) > 1 else "")
    yield from thread_findings(
        torch.get_num_threads(), CPUS_AT_START, granted_cpus(), others_use(time.sleep), os.environ
    )


def _compilers() -> Iterator[Finding]:
    found = {name: shutil.which(name) for name in dict.fromkeys(library.compilers())}
    for name, path in found.items():
        if path is not None:
            yield Finding("C++ compiler", f"{path}: {_first_line([path, '--version'])}")
        elif name == os.environ.get("CXX"):
            yield Finding("C++ compiler", f"CXX={name} is no program on the PATH", "set CXX to one, or unset it")
    if not any(found.values()):
        advice = "install g++ or clang++ (Debian: apt-get install g++), or set CXX"
        yield Finding("C++ compiler", "none (g++ or clang++, or what CXX names)", advice)


def _native_kernels() -> Iterator[Finding]:
    kernels = library.find()
    if isinstance(kernels, str):
        advice = "passes are slower without them: see the compiler, or set SPEC_SDK_CACHE to a directory of yours"
        yield Finding("native kernels", f"none: {kernels}", advice)
        return
    yield Finding("native kernels", f"{_made_by(Path(kernels._name))}{_amx()}")
    most = {name: most_rows(dtype, 0) for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))}
    words = [f"{name} {'of any number of' if rows >= ANY else f'up to {rows}'} rows" for name, rows in most.items()]
    yield Finding("native products", ", ".join(words))


def large_pages(setting: str | None, given: float | None) -> Finding:
    """Whether weights get pages of 2 MiB. ``given``: the share of some memory that asked for them and got them."""
    if setting is None or given is None:
        return Finding("large pages", "this system does not say")
    text = f"{given:.0%} of what asks for them; transparent_hugepage={setting}"
    if setting == "never":
        advice = f"as root: echo madvise > {huge_pages.SETTING}; weights in large pages are read faster"
    else:
        advice = "memory is in pieces: fewer large pages are left, and passes are slower" if given < MOST_GIVEN else ""
    return Finding("large pages", text, advice)


def _amx() -> str:
    """Whether the kernels use AMX, on a processor that has it."""
    if library.uses_amx():
        return "; products by AMX"
    if "amx_int8" not in processor().split():
        return ""
    turned_off = os.environ.get(library.AMX) == "0"
    return f"; without AMX: {f'{library.AMX}=0' if turned_off else 'compiler or system do not have it'}"


def _made_by(path: Path) -> str:
    try:
        found = _MADE_BY.search(path.read_bytes())
    except OSError:
        return f"{path}, removed since this process loaded it"
    return f"{path}, by {found[0].decode() if found else 'an unknown compiler'}"


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else f"ended with status {done.returncode}"


def others_use(sleep: Callable[[float], None]) -> float | None:
    """How many of this process's cores other programs use now; None where the system does not say."""
    before = read_core_times()
    sleep(LOOK_S)
    return read_core_times().others_since(before)


def thread_findings(
    threads: int, cores: int, granted: float | None, others: float | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """What keeps threads from computing at full speed. ``cores``: that this process may run on, of which a limit may
    grant only a part (``granted``) and others use so many.
    """
    usable = cores if granted is None else min(cores, max(1, math.floor(granted)))
    said = environment.get("OMP_NUM_THREADS")
    why = f", by OMP_NUM_THREADS={said}" if said else ""
    text = f"{threads} of torch{why}; {cores} cores"
    text += "" if granted is None else f", of which a limit grants {granted:.3g}"
    advice = ""
    if threads > usable:
        advice = f"more threads than cores take turns: backend.threads={usable}"
    elif said and threads < usable:
        advice = f"cores stay idle: unset OMP_NUM_THREADS, or backend.threads={usable}"
    yield Finding("threads", text, advice)
    taken = others is not None and others > cores - threads + TAKEN
    waiting = next((f"{name}={environment[name]}" for name in ENVIRONMENT if environment.get(name)), None)
    if waiting is None:
        yield Finding("waiting", "as backend.wait says")
    else:
        name, _, value = waiting.partition("=")
        spins = value.lower() not in ASLEEP
        keeps = f"unset {name}: threads that spin keep the cores from those that compute"
        yield Finding("waiting", f"{waiting}, whatever backend.wait says", keeps if spins and (taken or advice) else "")
    for name in PINNING:
        if value := environment.get(name, ""):
            pins = value.lower() not in ("false", "0", "none", "disabled")
            unset = f"unset {name}: processes that are pinned so may meet on one core" if pins else ""
            yield Finding("pinning", f"{name}={value}", unset)
    busy = "unknown" if others is None else f"use {others:.1f} of {cores} cores"
    advice = "end them, or expect slow and uneven times; timings say nothing now" if taken else ""
    yield Finding("other programs", busy, advice)


def cuda_findings() -> Iterator[Finding]:
    """GPUs, their driver and Triton."""
    driver = nvidia_driver()
    if not torch.cuda.is_available():
        text = f"torch {torch.__version__} finds no CUDA device"
        built = torch.version.cuda
        if driver is not None and built is None:
            advice = "install a torch that is built for CUDA: https://pytorch.org/get-started"
            yield Finding("GPU", f"{text}: it is built without CUDA, and there is a driver ({driver})", advice)
        elif driver is not None:
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            advice = f"CUDA_VISIBLE_DEVICES={hidden} may hide it" if hidden is not None else "the driver may be too old"
            yield Finding("GPU", f"{text}, and there is a driver ({driver}); it is built for CUDA {built}", advice)
        else:
            yield Finding("GPU", f"{text}, and no driver is seen")
    else:
        yield Finding("CUDA", f"{torch.version.cuda}, driver {driver or 'unknown'}")
        for index in range(torch.cuda.device_count()):
            yield _gpu(index)
    yield _triton()


def _gpu(index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    capability = f"{properties.major}.{properties.minor}"
    text = f"{properties.name}, compute {capability}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    advice = "other programs hold most of its memory" if free < total / 2 else ""
    return Finding(f"GPU {index}", text, advice)


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver; None where none is seen."""
    path = Path("/proc/driver/nvidia/version")
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", path.read_text(encoding="utf-8", errors="replace"))
        return found[1] if found else "of an unknown version"
    except OSError:
        pass
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = _first_line([program, "--query-gpu=driver_version", "--format=csv,noheader"])
    return words if re.fullmatch(r"[\d.]+", words) else None


def _triton() -> Finding:
    if importlib.util.find_spec("triton") is None:
        wanted = "pip install 'spec-sdk[cuda]'" if torch.cuda.is_available() else ""
        return Finding("triton", "not installed, which backend=cuda needs", wanted)
    try:
        triton = importlib.import_module("triton")
    except Exception as error:  # a build for another libc or Python may raise anything
        return Finding("triton", f"cannot be imported: {type(error).__name__}: {error}", "install it again")
    return Finding("triton", str(getattr(triton, "__version__", "of an unknown version")))


def accelerate_findings() -> Iterator[Finding]:
    """What joins several processes."""
    offered = [name for name in ("gloo", "nccl", "mpi") if _distributed(name)]
    version = importlib.metadata.version("accelerate")
    yield Finding("processes", f"{launched_processes()} launched; accelerate {version}, {', '.join(offered) or 'none'}")


def _distributed(name: str) -> bool:
    if not torch.distributed.is_available():
        return False
    return bool(getattr(torch.distributed, f"is_{name}_available")())
