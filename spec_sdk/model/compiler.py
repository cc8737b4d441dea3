"""Functions of tensors, compiled ahead of time for this machine and kept on disk.

``torch.export`` traces a function, AOTInductor makes a shared library of it. Such a graph has no guards, so nothing can
be compiled again in the middle of a run, and a kept one is loaded in a tenth of a second, without a compiler.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import spec_sdk
from spec_sdk.files import scratch_directory, write_json
from spec_sdk.model.source_cache import cache_root

OPTIONS: dict[str, Any] = {
    # a pass of a few rows is too small to wake a thread for
    "cpp.threads": 1,
    # precompiled headers take 30 s and 800 MB to make, and save 10 s a graph
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
}
TRACED_PACKAGES = ("model", "ops")
"""Rooms of spec_sdk whose code may be traced: a kept graph is of this very text."""

Graph = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""A compiled function; the list of its arguments is emptied."""


class CannotCompile(Exception):
    """Why something was not compiled, in a line."""


@dataclass
class Compiler:
    """Compiles, keeps and loads graphs, and counts.

    ``graphs``: how many were obtained; ``compiled``: those of them that were not found on disk; ``seconds``: taken.
    """

    graphs: int = 0
    compiled: int = 0
    seconds: float = 0.0
    _loaded: dict[str, Graph] = field(default_factory=dict, repr=False)

    def obtain(
        self,
        key: str,
        function: Callable[..., Sequence[torch.Tensor]],
        examples: Sequence[torch.Tensor],
        dynamic: Sequence[dict[int, Any] | None],
    ) -> Graph:
        """The graph of ``function``, from memory, from disk, or compiled now.

        ``key`` says all that the function depends on beside its arguments and the text of spec_sdk. ``dynamic``: per
        argument, which of its dims have which ``torch.export.Dim``. Raises CannotCompile.
        """
        path = place(key)
        if str(path) not in self._loaded:
            start = time.perf_counter()
            graph = load(path)
            if graph is None:
                compile_to(path, function, examples, dynamic)
                self.compiled += 1
                graph = load(path)
            if graph is None:
                raise CannotCompile(f"{path} was compiled and cannot be loaded")
            self._loaded[str(path)] = graph
            self.graphs += 1
            self.seconds += time.perf_counter() - start
        return self._loaded[str(path)]


def directory() -> Path:
    """Where graphs are kept: apart for every version of torch, processor, and text of the code that is traced."""
    return cache_root() / "compiled" / f"torch-{torch.__version__}-{_fingerprint()}"


def place(key: str) -> Path:
    """The file of the graph that ``key`` is all about."""
    return directory() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.pt2"


@functools.cache
def _fingerprint() -> str:
    package = Path(spec_sdk.__file__).parent
    texts = [path.read_bytes() for room in TRACED_PACKAGES for path in sorted((package / room).rglob("*.py"))]
    facts = [sys.version, platform.machine(), torch.backends.cpu.get_cpu_capability(), processor(), repr(OPTIONS)]
    return hashlib.sha256(b"\0".join([*texts, *(fact.encode() for fact in facts)])).hexdigest()[:16]


@functools.cache
def processor() -> str:
    """What the processor can do: a graph is made for this one, and a home directory may be seen by several."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def load(path: Path) -> Graph | None:
    """A graph that was kept; None where there is none that can be loaded."""
    if not path.is_file():
        return None
    try:
        # the loader itself: torch._inductor.aoti_load_package takes seconds to import
        loader: Any = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    except (AttributeError, TypeError, RuntimeError):
        return None
    run, lock = loader.boxed_run, threading.Lock()

    def graph(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        # a graph may call Python, so a thread that waited for another one inside the library would keep it waiting
        with lock:
            results: list[torch.Tensor] = run(arguments)
        return results

    return graph


def compile_to(
    path: Path,
    function: Callable[..., Sequence[torch.Tensor]],
    examples: Sequence[torch.Tensor],
    dynamic: Sequence[dict[int, Any] | None],
) -> None:
    """Trace and compile ``function`` into the file ``path``, whole or not at all. Raises CannotCompile."""
    if missing := no_compiler():
        raise CannotCompile(missing)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _quiet(), scratch_directory(path.parent, ".compiling-") as work:
            made = work / path.name
            _compile(made, function, examples, dynamic, work)
            os.replace(made, path)
    except CannotCompile:
        raise
    except Exception as error:
        # torch raises dozens of types here, from tracing to the C++ compiler
        raise CannotCompile(_first_line(error)) from error


def _compile(
    path: Path,
    function: Callable[..., Sequence[torch.Tensor]],
    examples: Sequence[torch.Tensor],
    dynamic: Sequence[dict[int, Any] | None],
    work: Path,
) -> None:
    # takes seconds to import, which a run without compilation should not wait for
    from torch._inductor import aoti_compile_and_package
    from torch.export import export

    class Function(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(function(*tensors))

    with torch.no_grad(), _environment(TORCHINDUCTOR_CACHE_DIR=str(work)):
        program = export(Function(), tuple(examples), dynamic_shapes=(tuple(dynamic),), strict=False)
        aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(OPTIONS))


def no_compiler() -> str | None:
    """Why nothing can be compiled here, as far as can be seen at once; None if nothing speaks against it."""
    if importlib.util.find_spec("torch._inductor") is None:
        return f"torch {torch.__version__} has no inductor"
    if not any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name):
        return "there is no C++ compiler (g++ or clang++, or what CXX names)"
    return None


def trial() -> str | None:
    """Why compilation does not work on this machine; None if it does.

    Found by compiling a function of a line in the real way, once per machine: that it worked is kept on disk, that it
    failed is not.
    """
    if missing := no_compiler():
        return missing
    path = directory() / "trial.pt2"
    x = torch.arange(6.0).view(2, 3)
    for attempt in ("kept", "compiled now"):
        graph = load(path)
        if graph is not None:
            (found,) = graph([x.clone()])
            if torch.equal(found, x * 2 + 1):
                return None
        if attempt == "kept":
            try:
                compile_to(path, lambda x: (x * 2 + 1,), [x], [None])
            except CannotCompile as error:
                return str(error)
    return f"{path} was compiled and does not compute what it should"


def seconds_a_graph() -> float | None:
    """What compiling a graph took on this machine when it was last done; None if it never was."""
    try:
        return float(json.loads((directory() / "seconds.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def keep_seconds(seconds: float) -> None:
    """For :func:`seconds_a_graph`."""
    with contextlib.suppress(OSError):
        write_json(directory() / "seconds.json", seconds)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of what it does itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
