"""The kernels compile for NVIDIA GPUs, to machine code, on a machine without one (the interpreter accepts far more)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rows", "closed"),
    [("bf16", 64, 4096, True), ("fp16", 96, 48, False), ("bf16", 256, 1, False), ("fp32", 64, 1, True)],
)
def test_machine_code(dtype: str, head_dim: int, rows: int, closed: bool, tmp_path: Path) -> None:
    """In its own process: the interpreter, once on, stays on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), dtype, str(head_dim), str(rows)]
    done = subprocess.run(
        [*command, "closed" if closed else "growing"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["tree_attention_kernel", "combine_splits_kernel"]
    for line in lines:
        _, code_bytes, shared_bytes = line.split()
        assert int(code_bytes) > 0
        assert int(shared_bytes) <= 99 * 1024, "more shared memory than a block may have on compute capability 8.6"
