"""The kernels compile for NVIDIA GPUs, to machine code, on a machine without one (the interpreter accepts far more)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FULL

pytest.importorskip("triton")


# type, head dim, rows per KV head, whether the tree grows, compute capability
CASES = ("fp16,96,48,growing,80", "bf16,128,4096,closed,90", "bf16,256,1,growing,80", "fp32,256,64,closed,90")
"""Every type, both ends and capabilities, few rows and many, heads that are padded and the largest tiles."""
OTHERS = (
    "bf16,64,4096,closed,90",
    "bf16,128,4,closed,90",
    "bf16,128,64,closed,90",
    "bf16,256,64,growing,90",
    "fp32,64,4096,closed,80",
    "fp32,128,64,growing,90",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All cases in one process, which is not this one: the interpreter, once on, stays on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), *CASES, *(OTHERS if FULL else ())]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.full) for case in OTHERS)])
def test_machine_code(case: str, compiled: subprocess.CompletedProcess[str]) -> None:
    lines = [line.split()[1:] for line in compiled.stdout.splitlines() if line.split()[0] == case]
    assert [name for name, *_ in lines] == ["tree_attention_kernel", "combine_splits_kernel"], compiled.stderr
    for _, code_bytes, shared_bytes, _ in lines:
        assert int(code_bytes) > 0
        assert int(shared_bytes) <= 99 * 1024, "more shared memory than a block may have on compute capability 8.6"
    # in the loop over the prefix and in the one over the tree
    assert int(lines[0][3]) >= 2, "the loads of a loop are not pipelined"


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
