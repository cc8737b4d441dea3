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
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from spec_sdk.files import scratch_directory
from spec_sdk.model.compiler import processor
from spec_sdk.model.source_cache import cache_root, one_process
from spec_sdk_backends.native.panels import to_panels
from spec_sdk_backends.native.structures import DTYPES, Matrix, address

SOURCE = Path(__file__).parent / "source"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w")
WITHOUT_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
LOCK_FILE = ".native.lock"
"""In the cache; held by the process that compiles or times the kernels."""
LONGEST = 300
"""Seconds that the compiler may take."""
AMX = "SPEC_SDK_AMX"
"""The environment variable that is 0 where AMX's tiles are not to be used."""
RUNTIMES = ("libgomp", "libiomp5", "libomp")


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


def use_amx(kernels: Any, wanted: bool) -> bool:
    """Whether products go by AMX from now on: if that is ``wanted`` and processor, compiler and system have it."""
    return bool(kernels.spec_amx(wanted))


def uses_amx() -> bool:
    """Whether they do; False without native kernels."""
    found: Any = find()
    return not isinstance(found, str) and bool(found.spec_uses_amx())


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
    try:
        directory = cache_root() / "native"
        path = directory / f"{_name(runtimes[0])}.so"
        if not path.is_file():
            installed = _installed_compilers()
            directory.mkdir(parents=True, exist_ok=True)
            # ranks, or workers of a sweep, begin together: one compiles for all
            with one_process(cache_root() / LOCK_FILE, _say_it_waits, LONGEST):
                if not path.is_file():
                    with scratch_directory(directory, ".compiling-") as work:
                        os.replace(_compiled(installed, work, runtimes), path)
    except (OSError, RuntimeError) as error:
        # a directory that may not be read or written, or no home
        raise NoNativeKernels(
            f"where they would be kept: {error}; set SPEC_SDK_CACHE to a directory that can be written to"
        ) from error
    return _load(path, runtimes)


def _say_it_waits() -> None:
    print("waiting for the native kernels, which a process beside this one compiles", file=sys.stderr)


def _load(path: Path, runtimes: list[str]) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoNativeKernels(f"{path} cannot be loaded: {error}") from error
    if openmp_runtimes() != runtimes:
        raise NoNativeKernels(f"{path} brought a second OpenMP runtime along")
    _declare(loaded)
    use_amx(loaded, os.environ.get(AMX) != "0")
    if not _works(loaded):
        use_amx(loaded, False)
        if not _works(loaded):
            raise NoNativeKernels(f"{path} was compiled and does not compute what it should")
    return loaded


def _compiled(installed: list[str], work: Path, runtimes: list[str]) -> Path:
    """What the first compiler made that makes a library that works."""
    failed = []
    for i, compiler in enumerate(installed):
        made, start = work / f"{i}.so", time.perf_counter()
        print(f"compiling the native kernels with {compiler}, once on this machine", file=sys.stderr)
        try:
            _compile(compiler, made, runtimes[0])
            _load(made, runtimes)
        except NoNativeKernels as error:
            failed.append(str(error))
        else:
            print(f"compiled in {time.perf_counter() - start:.0f} s, kept in {work.parent}", file=sys.stderr)
            return made
    raise NoNativeKernels("; ".join(failed))


def _installed_compilers() -> list[str]:
    installed = [path for path in map(shutil.which, compilers()) if path]
    if not installed:
        raise NoNativeKernels("there is no C++ compiler (g++ or clang++, or what CXX names)")
    return installed


def compilers() -> list[str]:
    """The names of those that are tried, in this order."""
    return [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]


def _name(runtime: str) -> str:
    """All that the library depends on beside the compiler."""
    facts = [*FLAGS, runtime, sys.platform, platform.machine(), processor()]
    texts = [path.read_bytes() for path in sorted(SOURCE.iterdir())]
    return hashlib.sha256(b"\0".join([*texts, *(fact.encode() for fact in facts)])).hexdigest()[:24]


def _compile(compiler: str, path: Path, runtime: str) -> None:
    # in two steps: a compiler that links with -fopenmp adds a runtime of its own
    part = path.with_suffix(".o")
    sources = ["-c", str(SOURCE / "kernels.cpp"), "-o", str(part)]
    try:
        _run([compiler, *FLAGS, *sources])
    except NoNativeKernels as first:
        # an assembler may know less than its compiler
        try:
            _run([compiler, *FLAGS, *WITHOUT_AMX, *sources])
        except NoNativeKernels:
            raise first from None
    _run([compiler, "-shared", str(part), runtime, "-o", str(path)])


def _run(command: list[str]) -> None:
    try:
        # a session of its own: a compiler's driver leaves its helpers behind when it is killed
        run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        raise NoNativeKernels(f"{command[0]}: {error}") from error
    with run:
        try:
            messages = run.communicate(timeout=LONGEST)[1]
        except subprocess.TimeoutExpired as error:
            os.killpg(run.pid, signal.SIGKILL)
            raise NoNativeKernels(f"{command[0]}: not done after {LONGEST} seconds") from error
    if run.returncode:
        lines = [line.strip() for line in messages.splitlines() if line.strip()]
        if "No space left" in messages:
            raise NoNativeKernels("no space is left where they would be kept; set SPEC_SDK_CACHE to another place")
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise NoNativeKernels(f"{command[0]} failed with status {run.returncode}: {first}")


def _declare(loaded: Any) -> None:
    whole, number, pointer, short = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_int
    arguments: dict[str, list[Any]] = {
        "product": [pointer, pointer, whole, whole, pointer],
        "expand": [pointer, pointer, whole, whole, pointer],
        "attention": [whole, whole, whole, number, number, whole, *([pointer] * 3), whole, pointer, whole, pointer],
        "attend_to_ends": [pointer, pointer, pointer, pointer, pointer, whole, pointer],
        "attend_between": [pointer, pointer, pointer, pointer, pointer, whole, pointer, pointer, pointer],
        "blocks": [pointer, pointer, whole, whole, *([pointer] * 8)],
        "before": [pointer, pointer, whole, pointer, pointer, pointer, pointer, pointer],
        "after": [pointer, pointer, whole, pointer, pointer],
        "norm": [pointer, whole, whole, pointer, number, pointer],
        "varied_blocks": [pointer, pointer, whole, *([pointer] * 7)],
        "mixed_blocks": [pointer, pointer, whole, pointer, pointer, whole, *([pointer] * 7)],
        "drop_rows": [pointer, pointer, whole, whole],
        "gated_delta": [*([pointer] * 4), whole, pointer],
        "state_space": [*([pointer] * 4), whole, pointer],
        "short_convolution": [*([pointer] * 4), whole, pointer],
        "grow": [pointer, pointer, pointer],
        "top": [pointer, whole, whole, whole, whole, pointer, pointer],
    }
    for name, types in arguments.items():
        function = getattr(loaded, f"spec_{name}")
        function.argtypes = [short, *types, short]
        function.restype = None
    answering: dict[str, tuple[list[Any], Any]] = {
        "wait": ([short], None),
        "amx": ([short], short),
        "uses_amx": ([], short),
        "lay_in_panels": ([pointer, whole, whole, whole, pointer, short], None),
        "lay_rows": ([pointer, whole, whole, whole, pointer], None),
        "lay_side_by_side": ([whole, pointer, pointer, pointer, whole, whole, pointer, short], None),
        "places_of_records": ([whole, whole, pointer], None),
        "forward": ([short, *([pointer] * 10), short], short),
        "fold": ([*([pointer] * 4), whole, whole, pointer, pointer, short], None),
        "mass_of_logits": ([short, pointer, pointer, pointer, whole, pointer, short], number),
        "mass_of_probabilities": ([pointer, pointer], number),
        "mass_beyond": ([pointer, pointer, number, pointer, number, short], number),
        "mass_without": ([pointer, whole], number),
        "draw": ([pointer, number], whole),
    }
    for name, (types, result) in answering.items():
        function = getattr(loaded, f"spec_{name}")
        function.argtypes, function.restype = types, result


def multiply_to(kernels: Any, matrix: Matrix, x_KI: torch.Tensor, y: torch.Tensor, threads: int | None = None) -> None:
    """``x_KI``, of rows whose elements are contiguous, times the matrix into ``y`` [K, O], which is contiguous.

    ``threads``: torch's own number, if left out.
    """
    number = DTYPES[x_KI.dtype]
    rows = (x_KI.data_ptr(), x_KI.stride(0), x_KI.shape[0])
    kernels.spec_product(number, address(matrix), *rows, y.data_ptr(), threads or torch.get_num_threads())


def _works(loaded: Any) -> bool:
    """Whether a small product comes out exactly, on one thread and on several."""
    for dtype in DTYPES:
        x_NI = torch.arange(3 * 70).remainder(5).to(dtype).view(3, 70)
        w_OI = torch.arange(37 * 70).remainder(7).to(dtype).view(37, 70)
        panels = to_panels(w_OI, loaded)
        matrix = Matrix.dense(panels, 37, 70, None)
        for threads in (1, torch.get_num_threads()):
            y_NO = torch.empty((3, 37), dtype=dtype)
            multiply_to(loaded, matrix, x_NI, y_NO, threads)
            if not torch.equal(y_NO, (x_NI.double() @ w_OI.double().T).to(dtype)):
                return False
    return True
