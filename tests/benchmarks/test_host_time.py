"""The pretended device of ``benchmarks.host_time``."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.host_time import PretendedDevice, of_tree
from spec_sdk.model.executor import PassOutput
from spec_sdk.ops import host_reads


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:
    """Busy for ten seconds with each pass, as long as a test."""
    for name in ("_on_its_way", "begin"):
        monkeypatch.setattr(host_reads, name, getattr(host_reads, name))
    made = PretendedDevice(10.0)
    made.is_read()
    return made


def test_passes_come_one_after_the_other_and_readers_wait(device: PretendedDevice) -> None:
    """By its own clock: nothing is slept, and what the CPU computes counts for nothing."""

    def run() -> PassOutput:
        time.sleep(0.05)
        return PassOutput(torch.ones(1, 1, 3))

    began, really = device.now, time.perf_counter()
    replay, output = device.capture(run)
    captured = device.now - began
    replay()
    begun = host_reads.begin(output.logits_BNV)
    replay()
    assert device.now - began < captured + 0.05, "who launches waits for nothing"
    begun.wait()
    assert 10 <= device.now - began < 11, "one that began before the second pass"
    host_reads.read(output.logits_BNV)
    assert 20 <= device.now - began < 21 and device.passes == 2
    assert 19 < device.seconds(began, device.mark()) < 21
    assert time.perf_counter() - really < 5


def test_a_plain_step_is_hidden_and_one_with_a_tree_is_not(device: PretendedDevice) -> None:
    plain, tree = of_tree(1, 1.0, 20), of_tree(8, 1.0, 20)
    assert plain["steps"] == tree["steps"] == 20 and tree["passes"] == 20
    assert abs(plain["host_us"]) < tree["host_us"] < 1e6
