"""The sampling kernels compile for NVIDIA GPUs, to machine code, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("dtype", "filters", "laws", "capability", "shape"),
    [
        ("bf16", "plain", "softmax", 90, "chain"),
        ("bf16", "plain", "softmax", 90, "tree"),
        pytest.param("fp32", "filtered", "sigmoid", 90, "tree", marks=pytest.mark.full),
        pytest.param("fp32", "filtered", "softmax", 90, "chain", marks=pytest.mark.full),
        pytest.param("fp16", "filtered", "sigmoid", 90, "chain", marks=pytest.mark.full),
        pytest.param("fp32", "plain", "sigmoid", 80, "tree", marks=pytest.mark.full),
    ],
)
def test_machine_code(dtype: str, filters: str, laws: str, capability: int, shape: str, tmp_path: Path) -> None:
    """In its own process: the interpreter, once on, stays on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = Path(__file__).parents[1] / "kernels" / "compile_sampling.py"
    done = subprocess.run(
        [sys.executable, str(script), dtype, filters, laws, str(capability), shape],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["row_statistics_kernel", "decide_kernel", "next_token_kernel"]
    assert all(int(line.split()[1]) > 0 for line in lines)
