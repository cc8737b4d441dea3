"""The library is made by the machine's compiler, once, whole or not at all, and shares torch's OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.ops.linear import Projection
from spec_sdk_backends import cpu
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.native import library
from spec_sdk_backends.native.library import find, openmp_runtimes
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.packed_projections import PackedProjection, can_pack

CODE = """
from spec_sdk_backends.native.library import find, openmp_runtimes
before = openmp_runtimes()
found = find()
print(found if isinstance(found, str) else "native", before == openmp_runtimes(), len(before))
"""


def process(cache: Path, **environment: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "SPEC_SDK_CACHE": str(cache), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen([sys.executable, "-c", CODE], env=variables, stdout=subprocess.PIPE, text=True)


def test_there_is_one_openmp_runtime() -> None:
    assert not isinstance(find(), str)
    assert len(openmp_runtimes()) == 1


def test_two_processes_compile_at_once_and_a_third_needs_no_compiler(tmp_path: Path) -> None:
    """Each finds a whole library; nothing else stays in the directory. PATH without a compiler then does."""
    both = [process(tmp_path) for _ in range(2)]
    assert [run.communicate()[0] for run in both] == ["native True 1\n"] * 2
    files = list((tmp_path / "native").iterdir())
    assert len(files) == 1 and files[0].suffix == ".so"
    empty = tmp_path / "no programs"
    empty.mkdir()
    assert process(tmp_path, PATH=str(empty), CXX="").communicate()[0] == "native True 1\n"


def test_without_a_compiler_packed_weights_stay_and_the_machine_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    find.cache_clear()
    try:
        reason = find()
        assert reason == "there is no C++ compiler (g++ or clang++, or what CXX names)"
        backend = CpuBackend(CpuConfig())
        assert backend.describe().endswith(f", no native kernels: {reason}")
        if can_pack(torch.float32):
            assert type(backend.ops.projection(torch.eye(8))) is PackedProjection
        with pytest.raises(UserError, match="^backend.native=true: there is no C.* compiler .*backend.native=auto$"):
            CpuBackend(CpuConfig(native=True))
    finally:
        find.cache_clear()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "failed with status 3: no message"),
        ("[ $1 = --version ] || { echo 'error: no such flag' >&2; exit 1; }", "status 1: error: no such flag"),
    ],
)
def test_a_compiler_that_fails_is_quoted(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    find.cache_clear()
    try:
        found = find()
        assert isinstance(found, str) and reason in found
    finally:
        find.cache_clear()


def test_a_library_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_works", lambda loaded: False)
    find.cache_clear()
    try:
        found = find()
        assert isinstance(found, str) and "does not compute what it should" in found
    finally:
        find.cache_clear()


def test_the_option() -> None:
    """auto and true: native; false: packed; plain torch where weights are not packed, of which true is no part."""
    assert type(CpuBackend(CpuConfig()).ops) is type(CpuBackend(CpuConfig(native=True)).ops) is NativeOps
    assert type(CpuBackend(CpuConfig(native=False)).ops) is CpuOps
    plain = CpuBackend(CpuConfig(pack_weights=False)).ops
    assert type(plain) is CpuOps and type(plain.projection(torch.eye(8))) is Projection
    assert CpuBackend(CpuConfig()).describe().endswith(", native kernels")
    for config in (CpuConfig(native=False), CpuConfig(pack_weights=False)):
        assert "native" not in CpuBackend(config).describe()
    with pytest.raises(UserError, match="backend.native=true: backend.pack_weights=false asks for plain torch"):
        CpuBackend(CpuConfig(native=True, pack_weights=False))
    with pytest.raises(UserError, match="backend.native: 'fast' must be auto, true or false"):
        CpuBackend(CpuConfig(native="fast"))


def test_a_machine_without_kernels_is_not_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled where the option says no."""
    monkeypatch.setattr(cpu, "find", lambda: pytest.fail("compiled"))
    assert type(CpuBackend(CpuConfig(native=False)).ops) is CpuOps
    assert type(CpuBackend(CpuConfig(pack_weights=False)).ops) is CpuOps
