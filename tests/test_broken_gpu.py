"""A test that breaks a GPU's context does not fail those after it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import torch

broken = []


def synchronize():
    if broken:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


torch.cuda.is_initialized, torch.cuda.synchronize = (lambda: True), synchronize


def test_1_that_breaks_it():
    broken.append(True)
    synchronize()


def test_2_after_it():
    synchronize()


def test_3_that_fails_by_itself():
    raise RuntimeError("CUDA out of memory")


def test_4_after_that():
    synchronize()
"""


def test_a_worker_with_a_broken_gpu_is_replaced(tmp_path: Path) -> None:
    """One whose test has merely failed goes on."""
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n1", "-ptests.support.broken_gpu", "-pno:cacheprovider", "-c/dev/null"]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, tmp_path], cwd=root, capture_output=True, text=True, timeout=120)
    assert re.search(r"\b2 passed\b", done.stdout), done.stdout
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    assert failed == {"test_1_that_breaks_it", "test_3_that_fails_by_itself"}
    assert "an illegal memory access" in done.stdout, "what the first test said is not lost"
    assert re.findall(r"worker '(\w+)' crashed", done.stdout)[:1] == ["gw0"] and "'gw1' crashed" not in done.stdout
