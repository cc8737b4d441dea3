"""The native kernels as a shared library: compiled at first use by this machine's compiler, kept on disk, loaded.

It shares torch's own OpenMP runtime, so that its threads are torch's and there are no others.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.compiler import processor
from spec_sdk.model.source_cache import cache_root
from spec_sdk_backends.native.panels import to_panels
from spec_sdk_backends.native.structures import Matrix, address

SOURCE = Path(__file__).parent / "source"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w")
LONGEST = 300
"""Seconds that the compiler may take."""
RUNTIMES = ("libgomp", "libiomp5", "libomp")
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What the kernels compute in, and their numbers there."""


class NoNativeKernels(Exception):
    """Why there are no native kernels here, in a line."""


@functools.cache
def find() -> ctypes.CDLL | str:
    """The library; or why there is none. Found once in a process."""
    try:
        return _obtain()
    except NoNativeKernels as error:
        return str(error)


def library() -> Any:
    """The library, which :func:`find` has found to be there."""
    found = find()
    assert not isinstance(found, str), found
    return found


def openmp_runtimes() -> list[str]:
    """The files of the OpenMP runtimes in this process, sorted; none where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    files = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(file for file in files if Path(file).name.startswith(RUNTIMES))


def _obtain() -> ctypes.CDLL:
    torch.get_num_threads()  # torch has loaded its runtime by then
    runtimes = openmp_runtimes()
    if len(runtimes) != 1:
        raise NoNativeKernels(f"torch's OpenMP runtime is not found: {', '.join(runtimes) or 'none'} in this process")
    path = _kept(runtimes[0])
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoNativeKernels(f"{path} cannot be loaded: {error}") from error
    if openmp_runtimes() != runtimes:
        raise NoNativeKernels(f"{path} brought a second OpenMP runtime along")
    _declare(loaded)
    if not _works(loaded):
        raise NoNativeKernels(f"{path} was compiled and does not compute what it should")
    return loaded


def _kept(runtime: str) -> Path:
    """The file of the library, compiled now if it is not there. A kept one needs no compiler."""
    directory, name = cache_root() / "native", _name(runtime)
    compiler = next((found for found in map(shutil.which, _compilers()) if found), None)
    if compiler is None:
        kept = sorted(directory.glob(f"{name}-*.so"))
        if not kept:
            raise NoNativeKernels("there is no C++ compiler (g++ or clang++, or what CXX names)")
        return kept[0]
    path = directory / f"{name}-{_version(compiler)}.so"
    if not path.is_file():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=directory, prefix=".compiling-") as work:
                made, start = Path(work) / path.name, time.perf_counter()
                _compile(compiler, made, runtime)
                os.replace(made, path)
            seconds = time.perf_counter() - start
            print(f"compiled the native kernels in {seconds:.0f} s; kept in {directory}", file=sys.stderr)
        except OSError as error:
            raise NoNativeKernels(f"{directory}: {error.strerror or error}") from error
    return path


def _compilers() -> list[str]:
    return [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]


def _name(runtime: str) -> str:
    """All that the library depends on beside the compiler."""
    facts = [*FLAGS, runtime, sys.platform, platform.machine(), processor()]
    texts = [path.read_bytes() for path in sorted(SOURCE.iterdir())]
    return hashlib.sha256(b"\0".join([*texts, *(fact.encode() for fact in facts)])).hexdigest()[:24]


def _version(compiler: str) -> str:
    return hashlib.sha256(f"{compiler} {_run([compiler, '--version'])}".encode()).hexdigest()[:8]


def _compile(compiler: str, path: Path, runtime: str) -> None:
    # in two steps: a compiler that links with -fopenmp adds a runtime of its own
    part = path.with_suffix(".o")
    _run([compiler, *FLAGS, "-c", str(SOURCE / "kernels.cpp"), "-o", str(part)])
    _run([compiler, "-shared", str(part), runtime, "-o", str(path)])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNativeKernels(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise NoNativeKernels(f"{command[0]} failed with status {done.returncode}: {first}")
    return done.stdout


def _declare(loaded: Any) -> None:
    whole, number, pointer, short = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_int
    arguments: dict[str, list[Any]] = {
        "product": [pointer, pointer, whole, whole, pointer],
        "attention": [whole, whole, whole, number, number, whole, pointer, pointer, whole, pointer, whole, pointer],
        "blocks": [pointer, pointer, whole, whole, pointer, pointer, pointer, pointer, pointer],
        "before": [pointer, pointer, whole, pointer, pointer, pointer, pointer],
        "after": [pointer, pointer, whole, pointer, pointer],
    }
    for name, types in arguments.items():
        function = getattr(loaded, f"spec_{name}")
        function.argtypes = [short, *types, short]
        function.restype = None


def _works(loaded: Any) -> bool:
    """Whether a small product comes out exactly, on one thread and on several."""
    for dtype, number in DTYPES.items():
        x_NI = torch.arange(3 * 70).remainder(5).to(dtype).view(3, 70)
        w_OI = torch.arange(37 * 70).remainder(7).to(dtype).view(37, 70)
        panels = to_panels(w_OI)
        matrix = Matrix.dense(panels, 37, 70, None)
        for threads in (1, torch.get_num_threads()):
            y_NO = torch.empty((3, 37), dtype=dtype)
            loaded.spec_product(number, address(matrix), x_NI.data_ptr(), 70, 3, y_NO.data_ptr(), threads)
            if not torch.equal(y_NO, (x_NI.double() @ w_OI.double().T).to(dtype)):
                return False
    return True
