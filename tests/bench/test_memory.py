"""Memory that a call takes: tensors held at once, and this process's high-water mark."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from spec_sdk.bench.memory import peak_bytes


def test_peak_bytes_counts_what_is_held_at_once() -> None:
    def two_rows() -> None:
        first = torch.zeros(1 << 18)
        second = torch.zeros(1 << 18)
        del first
        third = torch.zeros(1 << 18)
        del second, third

    assert 2 << 20 <= peak_bytes(two_rows, torch.device("cpu")) < 3 << 20


RISES = """
import gc
gc.disable()
from spec_sdk.bench.memory import forget_resident_peak, resident_peak

before = forget_resident_peak()
if before is None:
    raise SystemExit("none")
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
peak = resident_peak()
del held
after = forget_resident_peak()
print(before, peak, after)
"""


def test_the_high_water_mark_is_set_back_and_rises() -> None:
    """In a process of its own, where no thread that an earlier test left gives memory back meanwhile."""
    run = subprocess.run([sys.executable, "-c", RISES], capture_output=True, text=True)
    if run.stderr == "none\n":
        pytest.skip("this kernel sets no high-water mark back")
    assert run.returncode == 0, run.stderr
    before, peak, after = map(int, run.stdout.split())
    assert peak >= before + (48 << 20), run.stdout
    assert after < before + (32 << 20), run.stdout
