"""The library is made by the machine's compiler, once, whole or not at all, and shares torch's OpenMP runtime."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from spec_sdk.errors import UserError
from spec_sdk.ops.linear import Projection
from spec_sdk.testing.random_weights import TINY, RandomWeights
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
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", CODE], env=variables, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Look for kernels anew, and again afterwards."""
    find.cache_clear()
    yield
    find.cache_clear()


def test_there_is_one_openmp_runtime() -> None:
    assert not isinstance(find(), str)
    assert len(openmp_runtimes()) == 1


FAILING = "cat >/dev/null; echo 'error: no such flag' >&2; exit 1"


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def stand_in(path: Path) -> str:
    """A compiler that makes the library of this machine by copying it, in two parts."""
    made = find()
    assert not isinstance(made, str)
    in_parts = f'head -c 999 {made._name} > "$last"; sleep 1; tail -c +1000 {made._name} >> "$last"'
    return program(path, f'for last; do :; done\ncase "$*" in *-shared*) {in_parts};; *) : > "$last";; esac')


def test_two_processes_compile_at_once_and_a_third_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    """One compiles for both; nothing else stays in the directory. This process, with no compiler, finds it too."""
    cache, compiler = tmp_path / "cache", stand_in(tmp_path / "compiler")
    both = [process(cache, CXX=compiler) for _ in range(2)]
    said = [run.communicate() for run in both]
    assert [out for out, _ in said] == ["native True 1\n"] * 2
    lines = [line for _, err in said for line in err.splitlines()]
    assert sum(line.startswith("compiling the native kernels") for line in lines) == 1, lines
    files = list((cache / "native").iterdir())
    assert len(files) == 1 and files[0].suffix == ".so"
    monkeypatch.setenv("SPEC_SDK_CACHE", str(cache))
    monkeypatch.setattr(library, "compilers", lambda: [])
    find.cache_clear()
    kept = find()
    assert not isinstance(kept, str) and kept._name == str(files[0])


def test_a_process_that_holds_on_is_not_waited_for_longer_than_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", stand_in(tmp_path / "compiler"))
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "LONGEST", 2.0)
    find.cache_clear()
    (tmp_path / "cache" / "native").mkdir(parents=True)
    with FileLock(tmp_path / "cache" / library.LOCK_FILE):
        assert not isinstance(find(), str)
    waits, compiles = capsys.readouterr().err.splitlines()[:2]
    assert waits == "waiting for the native kernels, which a process beside this one compiles"
    assert compiles.startswith("compiling the native kernels")


def test_without_a_compiler_packed_weights_stay_and_the_machine_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    reason = find()
    assert reason == "there is no C++ compiler (g++ or clang++, or what CXX names)"
    backend = CpuBackend(CpuConfig())
    assert backend.describe().endswith(f", no native kernels: {reason}")
    if can_pack(torch.float32):
        assert type(backend.ops.projection(torch.eye(8))) is PackedProjection
    with pytest.raises(UserError, match="^backend.native=true: there is no C.* compiler .*backend.native=auto$"):
        CpuBackend(CpuConfig(native=True))


def test_a_run_without_a_compiler_is_told_once_that_it_is_slower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not where the kernels were turned off."""
    monkeypatch.setattr(cpu, "find", lambda: "there is no C++ compiler")
    backend = CpuBackend(CpuConfig())
    for _ in range(2):
        backend.load(RandomWeights(TINY, 0), torch.float32)
    assert capsys.readouterr().err == "warning: no native kernels: there is no C++ compiler; decoding is slower\n"
    for config in (CpuConfig(native=False), CpuConfig(pack_weights=False)):
        CpuBackend(config).load(RandomWeights(TINY, 0), torch.float32)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "failed with status 3: no message"),
        (FAILING, "status 1: error: no such flag"),
        ("sleep 9", "not done"),
        (f"echo 'as: {'x' * 200}: No space left on device' >&2; exit 1", "no space is left where they would be kept"),
    ],
)
def test_a_compiler_that_fails_is_quoted(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", program(tmp_path / "cxx", script))
    monkeypatch.setattr(library, "compilers", lambda: [os.environ["CXX"]])
    monkeypatch.setattr(library, "LONGEST", 1)
    found = find()
    assert isinstance(found, str) and reason in found


def test_another_compiler_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """clang++ makes a library that lacks a runtime; or what CXX names is no compiler."""
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin" / "g++")
    find.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", program(tmp_path / "cxx", FAILING))
    found = find()
    assert not isinstance(found, str) and found._name.startswith(str(tmp_path / "cache"))


def test_an_assembler_that_knows_no_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """The kernels are compiled without it then."""
    compiler = Path(stand_in(tmp_path / "cxx"))
    knows_less = 'case "$*" in *-mno-amx-tile*|*-shared*) ;; *) echo "error: ldtilecfg" >&2; exit 1;; esac'
    compiler.write_text(compiler.read_text().replace("\n", f"\n{knows_less}\n", 1))
    find.cache_clear()
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "compilers", lambda: [str(compiler)])
    found = find()
    assert not isinstance(found, str) and found._name.startswith(str(tmp_path / "cache"))


def test_amx_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(library, "_works", lambda loaded: not loaded.spec_uses_amx())
    assert not isinstance(find(), str) and not library.uses_amx()


def test_a_cache_that_is_out_of_reach_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "file" / "cache"))
    found = find()
    assert isinstance(found, str) and "where they would be kept: " in found and "SPEC_SDK_CACHE" in found


def test_a_library_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(library, "_works", lambda loaded: False)
    found = find()
    assert isinstance(found, str) and "does not compute what it should" in found


def test_the_option() -> None:
    """auto and true: native; false: packed; plain torch where weights are not packed, of which true is no part."""
    assert type(CpuBackend(CpuConfig()).ops) is type(CpuBackend(CpuConfig(native=True)).ops) is NativeOps
    assert type(CpuBackend(CpuConfig(native=False)).ops) is CpuOps
    plain = CpuBackend(CpuConfig(pack_weights=False)).ops
    assert type(plain) is CpuOps and type(plain.projection(torch.eye(8))) is Projection
    assert re.search(", native kernels( with AMX)?$", CpuBackend(CpuConfig()).describe())
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
