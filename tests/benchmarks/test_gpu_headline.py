"""The headline figures on a tiny model on the CPU: every part runs, and what cannot be measured is named."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import headline, random_model, timing
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops

WAYS = {"ways": "passes are captured on a GPU"}
TINY = ["--device=cpu", "--shape=tiny", "--prefix=20", "--tokens=6"]


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    output = tmp_path / "headline.json"
    assert headline.main([*TINY, f"--output={output}", *options]) == 0
    report: dict[str, Any] = json.loads(output.read_text())
    return report


def test_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = measured(tmp_path)
    assert report["left_out"] == WAYS
    # 2 layers: q, k, v, o, gate, up, down; and the head, in float32
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    assert report["weights_gb"] == pytest.approx(4 * (2 * layer + 256 * 64) / 1e9)
    assert report["bound_ms"] == pytest.approx(report["weights_gb"] / report["copy_tb_per_s"])
    assert report["plain_decoding"]["nodes"] == 1 and report["tree_cycle"]["nodes"] == headline.NODES
    wall = report["plain_decoding"]["wall_ms"]
    assert report["plain_decoding"]["share_of_bound"] == pytest.approx(report["bound_ms"] / wall)
    passes = report["passes"]["wall_ms"]
    assert report["passes"]["tree_over_plain_wall"] == pytest.approx(passes["tree"] / passes["plain"], rel=0.05)
    assert report["plain_decoding"]["device_ms"] is None and report["transformers"]["token_ms"] > 0
    said = capsys.readouterr().out
    assert "64-node pass over plain" in said and "device not measured" in said


def test_all_wall_times_are_taken_before_a_profiler_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has profiled launches more slowly, for transformers too."""
    told: list[str] = []

    def noted(name: str) -> Any:
        run = getattr(headline, name)

        def noting(*arguments: Any) -> Any:
            told.append(name)
            return run(*arguments)

        return noting

    for name in ("of_cycles", "of_passes", "of_transformers", "device_s"):
        monkeypatch.setattr(headline, name, noted(name))
    measured(tmp_path)
    assert told == [*("of_cycles", "of_passes", "of_cycles", "of_transformers"), *4 * ["device_s"]]


def test_what_a_cycle_takes_beyond_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cpu = random_model.make_model("tiny", torch.device("cpu"), torch.float32, 20), torch.device("cpu")
    times = iter([0.002, 0.003, 0.0005, 0.00075])
    monkeypatch.setattr(headline, "device_s", lambda run, device: next(times))
    report: dict[str, Any] = {"passes": {}, **{name: {"nodes": 1, "wall_ms": 4.0} for name in CYCLES}}
    headline.add_device_times(report, model, cpu, 2)
    assert report["passes"] == {"device_ms": {"plain": 2.0, "tree": 3.0}, "tree_over_plain_device": 1.5}
    assert [report[name]["overhead_ms"] for name in CYCLES] == [3.5, 3.25]


def test_a_way_that_fails_while_it_is_profiled_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cpu = random_model.make_model("tiny", torch.device("cpu"), torch.float32, 20), torch.device("cpu")

    def broken() -> Session:
        raise RuntimeError("no kernel here")

    monkeypatch.setattr(headline, "sessions_each_way", lambda *_: {"broken": broken, "other": lambda: model.session})
    monkeypatch.setattr(headline, "device_s", lambda run, device: 0.001)
    figures = {name: {"nodes": 1, "wall_ms": 4.0} for name in CYCLES}
    report: dict[str, Any] = {"left_out": {}, "ways": {name: copy.deepcopy(figures) for name in ("broken", "other")}}
    headline.add_device_times(report, model, cpu, 1)
    assert report["left_out"] == {"device times, broken": "RuntimeError: no kernel here"}
    assert report["ways"]["other"]["device_ms"] == {"plain": 1.0, "tree": 1.0}
    assert report["ways"]["other"]["tree_cycle"]["overhead_ms"] == 3.0 and "device_ms" not in report["ways"]["broken"]


CYCLES = ("tree_cycle", "plain_decoding")


def test_no_part_is_begun_after_its_time_and_the_rest_is_named(tmp_path: Path) -> None:
    report = measured(tmp_path, "--seconds=0")
    assert {"plain decoding", "passes", "tree cycle", "device times"} <= set(report["left_out"])
    assert report["bound_ms"] > 0


def test_transformers_is_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    report = measured(tmp_path)
    assert report["left_out"] == {**WAYS, "transformers": "transformers is not installed"}


def test_a_rival_that_fails_leaves_our_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> float:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(headline, "of_transformers", broken)
    report = measured(tmp_path)
    assert report["left_out"] == {**WAYS, "transformers": "RuntimeError: no compiler here"} and "passes" in report


def test_a_cycle_is_the_engines_own_greedy_decoding() -> None:
    """With one node or a tree of wrong guesses: the tokens that plain passes choose."""
    model = random_model.make_model("tiny", torch.device("cpu"), torch.float32, 20)

    def tokens(nodes: int) -> list[Any]:
        steps: Iterator[Any] = random_model.cycles(model, nodes, 12)
        return [token for step in islice(steps, 12) for token in step]

    plain, tree = tokens(1), tokens(headline.NODES)
    assert len(plain) == 12 and tree[:12] == plain


class CountedOps(Ops):
    accepted = 0

    def accept_in_pass(self, *of: Any) -> Any:
        self.accepted += 1
        return super().accept_in_pass(*of)


def test_a_captured_cycle_decides_by_the_executors_own_kernels() -> None:
    model, ops = random_model.make_model("tiny", torch.device("cpu"), torch.float32, 20), CountedOps()
    executor = model.session.executor
    assert isinstance(executor, TorchExecutor)
    session = Session(GraphExecutor(executor.decoder, ops, lambda run: (run, run())))
    session.prefill(0, model.prompt[:-1])
    list(islice(random_model.cycles(dataclasses.replace(model, session=session), 8, 3), 3))
    assert ops.accepted > 0


def test_a_pass_scores_every_node_and_commits_none() -> None:
    model = random_model.make_model("tiny", torch.device("cpu"), torch.float32, 20)
    plain, tree = random_model.plain_pass(model)(), random_model.tree_pass(model, headline.NODES)()
    assert plain.shape == (1, model.vocabulary) and tree.shape == (headline.NODES, model.vocabulary)
    torch.testing.assert_close(tree[:1], plain, atol=1e-5, rtol=1e-4)
    assert model.session.length() == 19


def test_device_time_is_the_union_of_intervals() -> None:
    assert timing.covered([]) == 0
    assert timing.covered([(5, 7), (0, 2), (1, 3), (1.5, 2)]) == 5


def test_passes_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured ones are run in place here; a way that raises is named, and the others keep their figures."""
    monkeypatch.setattr("spec_sdk_backends.cuda_graphs.GraphCapture", lambda device: lambda run: (run, run()))
    model, cpu = random_model.make_model("tiny", torch.device("cpu"), torch.float32, 20), torch.device("cpu")
    ways = headline.sessions_each_way(model, cpu)
    assert list(ways) == ["fused", "captured", "fused and captured"]
    made = {name: make() for name, make in ways.items()}
    expected = random_model.plain_pass(model)()
    for session in made.values():
        found = random_model.plain_pass(dataclasses.replace(model, session=session))()
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    # what was decoded before is no part of the comparison
    headline.of_cycles(model, 1, 1)

    def broken() -> Session:
        raise RuntimeError("no kernel here")

    def uncaptured(way: random_model.Model, *arguments: object) -> dict[str, Any]:
        if way.session is made["captured"]:
            raise RuntimeError("no graph here")
        return {"wall_ms": {"plain": 2.0, "tree": 3.0}, "tree_over_plain_wall": 1.5}

    def cycle(way: random_model.Model, nodes: int, *arguments: object) -> dict[str, Any]:
        return {"nodes": nodes, "wall_ms": 4.0, "overhead_ms": None}

    monkeypatch.setattr(headline, "of_passes", uncaptured)
    monkeypatch.setattr(headline, "of_cycles", cycle)
    each = {"broken": broken, **{name: functools.partial(made.__getitem__, name) for name in made}}
    monkeypatch.setattr(headline, "sessions_each_way", lambda *arguments: each)
    figures = headline.of_ways(model, cpu, 1, 1e-3)
    assert figures["broken"] == {"error": "RuntimeError: no kernel here"}
    assert figures["captured"] == {"error": "RuntimeError: no graph here"}
    assert figures["fused"]["share_of_bound"] == 0.5 and figures["fused"]["off_by"] < 1e-4
    assert figures["fused"]["plain_decoding"]["share_of_bound"] == 0.25
    told = headline.lines({**FACTS, "ways": figures})
    assert "passes captured: RuntimeError: no graph here" in told
    fused = next(line for line in told if line.startswith("passes fused: plain 2.000 ms, 50.0% of the bound's speed"))
    assert "plain decoding 4.000 ms a token, 25.0%" in fused


FACTS = {
    **{"machine": "some", "shape": "tiny", "dtype": "float32", "prefix": 20, "left_out": {}},
    **{"weights_gb": 1.0, "copy_tb_per_s": 1.0, "bound_ms": 1.0},
}
