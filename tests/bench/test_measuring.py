"""Measuring with an invented clock: how much time it takes, and what it leaves out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from spec_sdk.bench.measuring import MOST_PASSES, NODES, PassTimer, contexts_of, measure_curve
from spec_sdk.model.step_clock import HostClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from tests.support.tiny_decoder import tiny_decoder


class Machine:
    """A pass of n nodes takes ``first + slope * n`` seconds, its first one ``compiling`` times as long."""

    def __init__(self, first: float, slope: float, compiling: float = 1.0) -> None:
        self.now = 0.0
        self.first, self.slope, self.compiling = first, slope, compiling
        self.passes = Counter[tuple[int, int]]()

    def __call__(self, nodes: int, context: int) -> float:
        seconds = (self.first + self.slope * nodes) * (1 if self.passes[context, nodes] else self.compiling)
        self.passes[context, nodes] += 1
        self.now += seconds
        return seconds


@pytest.mark.parametrize(
    ("first", "slope"),
    [(1e-4, 1e-6), (0.01, 0.001), (0.03, 0.01), (0.1, 0.1), (0.5, 0.01), (1.5, 0.0), (3.0, 1.0), (0.001, 0.3)],
)
@pytest.mark.parametrize("compiling", [1.0, 3.0])
def test_it_stays_within_its_time(first: float, slope: float, compiling: float) -> None:
    machine = Machine(first, slope, compiling)
    curve = measure_curve(machine, (64, 1024), 4.0, now=lambda: machine.now)
    # the first pass of all is the only one of which nothing is known
    assert machine.now <= 4.0 + compiling * (first + slope)
    if curve is not None:
        for context, nodes in curve.points:
            assert machine.passes[context, nodes] >= 2
            assert curve.at(nodes, context) == pytest.approx(first + slope * nodes)


def test_a_fast_machine_gets_all_points_and_no_more_passes_than_needed() -> None:
    machine = Machine(1e-4, 1e-6)
    curve = measure_curve(machine, (64, 1024), 4.0, now=lambda: machine.now)
    assert curve is not None and set(curve.points) == {(context, nodes) for context in (64, 1024) for nodes in NODES}
    assert set(machine.passes.values()) == {MOST_PASSES}


def test_a_slow_machine_gets_the_points_that_tell_most() -> None:
    machine = Machine(0.08, 0.012)
    curve = measure_curve(machine, (64, 1024), 4.0, now=lambda: machine.now)
    assert curve is not None and {1, 8} <= {nodes for _, nodes in curve.points} and len(curve.points) < 14


def test_a_machine_too_slow_for_a_curve_gets_none() -> None:
    machine = Machine(3.0, 1.0)
    assert measure_curve(machine, (64, 1024), 4.0, now=lambda: machine.now) is None


@pytest.mark.parametrize(("longest", "contexts"), [(8192, (64, 1024)), (256, (64, 128)), (6, (1, 3)), (2, (1,))])
def test_contexts_fit_the_model(longest: int, contexts: tuple[int, ...]) -> None:
    assert contexts_of(longest) == contexts


@pytest.mark.parametrize("kind", ["tree", "growing"])
def test_passes_go_through_the_executor(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many rows as asked for, behind the context, and with logits that are finite."""
    executor, seen = TorchExecutor(tiny_decoder("smollm", 0), Ops()), list[tuple[str, int, int]]()
    forward = executor.forward

    def watched(inputs, cache, plan):  # type: ignore[no-untyped-def]
        output = forward(inputs, cache, plan)
        seen.append((inputs.kind, inputs.width, int(inputs.prefix_B[0])))
        assert output.logits_BNV.shape[1] == inputs.width and torch.isfinite(output.logits_BNV).all()
        return output

    monkeypatch.setattr(executor, "forward", watched)
    timer = PassTimer(executor, HostClock(), kind)  # type: ignore[arg-type]
    for nodes in (1, 4, 64):
        assert timer(nodes, timer.contexts[-1]) > 0
    assert seen == [(kind, nodes, timer.contexts[-1]) for nodes in (1, 4, 64)]
