"""The kernels compile for NVIDIA GPUs, to machine code, on a machine without one (the interpreter accepts far more)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rows", "closed", "capability"),
    [
        ("bf16", 64, 4096, True, 90),
        ("fp16", 96, 48, False, 80),
        ("bf16", 128, 4, True, 90),
        ("bf16", 128, 64, True, 90),
        ("bf16", 128, 4096, True, 90),
        ("bf16", 256, 1, False, 80),
        ("bf16", 256, 64, False, 90),
        ("fp32", 64, 4096, True, 80),
        ("fp32", 128, 64, False, 90),
        ("fp32", 256, 64, True, 90),
    ],
)
def test_machine_code(dtype: str, head_dim: int, rows: int, closed: bool, capability: int, tmp_path: Path) -> None:
    """In its own process: the interpreter, once on, stays on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), dtype, str(head_dim), str(rows)]
    done = subprocess.run(
        [*command, "closed" if closed else "growing", str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["tree_attention_kernel", "combine_splits_kernel"]
    for line in lines:
        _, code_bytes, shared_bytes, _ = line.split()
        assert int(code_bytes) > 0
        assert int(shared_bytes) <= 99 * 1024, "more shared memory than a block may have on compute capability 8.6"
    # in the loop over the prefix and in the one over the tree
    assert int(lines[0].split()[3]) >= 2, "the loads of a loop are not pipelined"


def test_a_growing_prefix_and_tree_compile_nothing() -> None:
    """Passes of other lengths, batches and splits take the kernels that the first one compiled; speculative attention
    has a second form, for prefixes that are longer than the window.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("launch_keys.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    launches = [line.split(" ", 1) for line in done.stdout.splitlines()]
    for kernel, most in (("tree_attention_kernel", 1), ("combine_splits_kernel", 1), ("speculative_split_kernel", 2)):
        keys = [key for name, key in launches if name == kernel]
        assert len(keys) > 4 and len(set(keys)) == most
