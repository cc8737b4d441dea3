"""The sampling kernels compile for NVIDIA GPUs, to machine code, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FULL

pytest.importorskip("triton")

CASES = ("bf16,plain,softmax,90,chain", "bf16,plain,softmax,90,tree")
OTHERS = (
    "fp32,filtered,sigmoid,90,tree",
    "fp32,filtered,softmax,90,chain",
    "fp16,filtered,sigmoid,90,chain",
    "fp32,plain,sigmoid,80,tree",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All cases in one process, which is not this one: the interpreter, once on, stays on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = Path(__file__).parents[1] / "kernels" / "compile_sampling.py"
    command = [sys.executable, str(script), *CASES, *(OTHERS if FULL else ())]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.full) for case in OTHERS)])
def test_machine_code(case: str, compiled: subprocess.CompletedProcess[str]) -> None:
    lines = [line.split()[1:] for line in compiled.stdout.splitlines() if line.split()[0] == case]
    names = ["row_statistics_kernel", "decide_kernel", "next_token_kernel"]
    assert [name for name, *_ in lines] == names, compiled.stderr
    assert all(int(code_bytes) > 0 for _, code_bytes, _ in lines)
