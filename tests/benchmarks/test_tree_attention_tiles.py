"""The sweep over tilings of tree attention, in Triton's interpreter: every tiling is run, and none is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.support import tune
from benchmarks.support.attention_inputs import Shape
from spec_sdk_backends.tree_attention import Tiling
from tests.support.skips import interpreted

pytestmark = interpreted
CPU = torch.device("cpu")
SHAPE = Shape(1, 4, 2, 16, 20, 5, "float32")
FITTING, TOO_LARGE = Tiling(16, 16, 16, 4, 2), Tiling(32, 32, 16, 4, 2)


@pytest.fixture
def few_tilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tune, "DEVICE", CPU)
    monkeypatch.setattr(tune, "candidates", lambda rows, head_dim, dtype: [FITTING, TOO_LARGE])
    run = tune.attention

    def attention(it: Any, tiling: Tiling) -> torch.Tensor:
        if tiling == TOO_LARGE:
            raise RuntimeError("out of resource: shared memory")
        return run(it, tiling)

    monkeypatch.setattr(tune, "attention", attention)


@pytest.mark.usefixtures("few_tilings")
def test_tilings_are_ranked_beside_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    def replays(calls: Mapping[str, Callable[[], torch.Tensor]], rounds: int) -> tuple[dict[str, float], ...]:
        outputs = [call() for call in calls.values()]
        for output in outputs:
            torch.testing.assert_close(output, outputs[0], atol=1e-5, rtol=1e-5)
        times = {name: 1.0 + (name != str(FITTING)) for name in calls}
        return times, times

    monkeypatch.setattr(tune, "median_replays", replays)
    found = tune.sweep(SHAPE, CPU)
    assert [one["s"] for one in found["ranked"]] == [1.0, 2.0] and found["today"]["s"] == 2.0
    assert (found["ranked"][0]["rows"], found["ranked"][0]["keys"]) == (16, 16)
    assert list(found["failed"]) == [str(TOO_LARGE)]
    assert tune.row(found)[0] == "2.00"


@pytest.mark.usefixtures("few_tilings")
def test_tilings_are_compiled_ahead_for_all_shapes_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By few nodes; one that does not compile keeps no other from it."""
    given: list[tuple[Shape, Tiling]] = []

    def here(compile_cases: Callable[[Sequence[Any]], None], cases: Sequence[Any]) -> None:
        given.extend(cases)
        compile_cases(list(reversed(cases)))

    monkeypatch.setattr(tune, "compile_beside", here)
    tune.compile_ahead([SHAPE, Shape(1, 4, 2, 16, 400, 5, "float32")])
    assert [(shape.nodes, tiling) for shape, tiling in given] == [(16, FITTING), (16, TOO_LARGE)]


def test_the_papers_shapes_come_first_and_what_is_compiled_alike_together() -> None:
    shapes = tune.shapes(quick=False)
    assert (shapes[0].batch, shapes[0].heads, shapes[0].head_dim, shapes[0].dtype) == (10, 10, 64, "bfloat16")
    kinds = [tune.compiled_alike(shape) for shape in shapes]
    runs = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert len(runs) == len(set(kinds))
