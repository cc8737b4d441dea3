"""The kernels of speculative attention compile for NVIDIA GPUs on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_machine_code(tmp_path: Path) -> None:
    """A head dim that is padded and a prefix per sequence. In its own process: the interpreter, once on, stays on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = Path(__file__).with_name("compile_speculative.py")
    command = [sys.executable, str(script), "bf16", "96", "4", "growing", "90"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == 3 * ["speculative_split_kernel"] + 3 * ["combine_speculation_kernel"]
    for _, code_bytes, shared_bytes, *resources in lines:
        assert int(code_bytes) > 0
        assert int(shared_bytes) <= 99 * 1024
        assert resources[1:] in ([], ["0"]), "registers were spilled"
