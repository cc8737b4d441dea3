"""The costs of a pipeline's passes: who measures them, when, and how they are kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.bench import pass_costs
from spec_sdk.bench.cost_curve import CostCurve, PassCosts
from spec_sdk.bench.kept_costs import LONGEST_KEPT_S, keep_costs, place, read_costs
from spec_sdk.bench.measuring import PassTimer
from spec_sdk.contracts import CostSource
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.policy.obtained_costs import is_long_enough, obtain_costs
from spec_sdk.registry import Registry
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint

CURVE = CostCurve({(64, 1): 1.0, (64, 8): 2.0})
COSTS = PassCosts(CURVE, CostCurve({(32, 1): 0.1, (32, 4): 0.3}), 1.5)
FACTS: dict[str, Any] = {"machine": {"threads": 2}, "models": [["a", 3]]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, "smollm", num_hidden_layers=4, max_position_embeddings=128)
    return directory


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every pass that is timed; none is made."""
    timed: list[tuple[int, int]] = []

    def instant(self: PassTimer, nodes: int, context: int) -> float:
        timed.append((nodes, context))
        return 1e-3 * (1 + 0.1 * nodes)

    monkeypatch.setattr(PassTimer, "__call__", instant)
    return timed


def pipeline_of(checkpoint: Path, *overrides: str) -> Pipeline:
    settings = settings_of("backend=cpu", f"model.target={checkpoint}", "pipeline=easyspec_paper", *overrides)
    return build_pipeline(settings, Registry.discover())


def test_what_was_kept_is_found_again() -> None:
    assert read_costs(FACTS) is None
    keep_costs(FACTS, COSTS)
    assert read_costs(FACTS) == COSTS
    keep_costs(FACTS, PassCosts(CURVE, None, 1.0))
    assert read_costs(FACTS) == PassCosts(CURVE, None, 1.0)


@pytest.mark.parametrize("change", [{"machine": {"threads": 3}}, {"models": [["b", 3]]}, {"torch": "3"}])
def test_another_machine_or_model_finds_nothing(change: dict[str, Any]) -> None:
    keep_costs(FACTS, COSTS)
    assert read_costs({**FACTS, **change}) is None


def test_costs_of_something_else_are_not_taken_whatever_their_file_is_called() -> None:
    keep_costs(FACTS, COSTS)
    other = {**FACTS, "torch": "3"}
    place(FACTS).rename(place(other))
    assert read_costs(other) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff"])
def test_a_broken_file_is_as_none(text: str) -> None:
    keep_costs(FACTS, COSTS)
    place(FACTS).write_text(text)
    assert read_costs(FACTS) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("target", [[64, 1, 1.0]]), ("draft", 3), ("measured_at", "x"), ("format", 0), ("measured_s", None)],
)
def test_a_file_of_wrong_values_is_as_none(key: str, value: Any) -> None:
    keep_costs(FACTS, COSTS)
    kept = json.loads(place(FACTS).read_text())
    place(FACTS).write_text(json.dumps({**kept, key: value}))
    assert read_costs(FACTS) is None


def test_old_costs_are_measured_again() -> None:
    keep_costs(FACTS, COSTS)
    assert read_costs(FACTS, today=time.time() + LONGEST_KEPT_S - 60) == COSTS
    assert read_costs(FACTS, today=time.time() + LONGEST_KEPT_S + 60) is None


def test_a_cache_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "file"))
    keep_costs(FACTS, COSTS)
    assert read_costs(FACTS) is None


@pytest.mark.parametrize("policy", ["fixed", "heuristic", "adaptive", "adaptive policy.costs=learn"])
def test_nobody_measures_who_was_not_asked_to(policy: str, checkpoint: Path, passes: list[tuple[int, int]]) -> None:
    pipeline_of(checkpoint, *f"policy={policy}".split())
    assert passes == []


def test_only_adaptive_looks_for_kept_costs(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(pass_costs, "read_costs", lambda facts: read.append("read"))
    for policy in ("fixed", "heuristic", "adaptive policy.costs=learn"):
        pipeline_of(checkpoint, *f"policy={policy}".split())
    assert read == []
    pipeline_of(checkpoint, "policy=adaptive")
    assert read == ["read"]


def test_asked_for_costs_are_measured_once_and_then_kept(checkpoint: Path, passes: list[tuple[int, int]]) -> None:
    first = pipeline_of(checkpoint, "policy=adaptive", "policy.costs=measure")
    assert {nodes for nodes, _ in passes} == {1, 2, 4, 8, 16, 32, 64} and {context for _, context in passes} == {32, 64}
    passes.clear()
    again = pipeline_of(checkpoint, "policy=adaptive")
    assert passes == []
    for pipeline in (first, again):
        assert pipeline.policy.learned.times.has_curve  # type: ignore[attr-defined]
    # another model of the same machine
    pipeline_of(checkpoint, "policy=adaptive", "policy.costs=measure", "model.dtype=bfloat16")
    assert passes


def test_facts_of_weights_in_few_bits_are_the_same_after_a_pass(tmp_path: Path) -> None:
    """It leaves things in the model, such as what kernels read; costs are kept after passes, and looked for before."""
    write_checkpoint(tmp_path, "smollm", hidden_size=192, intermediate_size=96, max_position_embeddings=128)
    pipeline = pipeline_of(tmp_path, "model.weights=int4")
    source = pipeline.costs_of(pipeline.engine.drafter)
    before = source.facts()
    tokens_of(pipeline, [1, 2, 3], 4)
    assert source.facts() == before


def test_facts_tell_what_costs_depend_on(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(*overrides: str) -> Any:
        pipeline = pipeline_of(checkpoint, *overrides)
        return place(pipeline.costs_of(pipeline.engine.drafter).facts())

    usual = facts()
    assert usual == facts() == facts("drafter.width=2", "policy.depth=3")
    others = [
        facts("model.dtype=bfloat16"),
        facts("backend.pack_weights=false"),
        facts("model.draft_layers=[0,2]"),
        facts("drafter.runner=sequential"),
    ]
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    others.append(facts())
    assert len({usual, *others}) == 6


def test_what_changes_during_a_run_is_no_fact(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How threads wait at the moment is said of the machine, and does not tell it from itself."""
    pipeline = pipeline_of(checkpoint)
    before = pipeline.costs_of(pipeline.engine.drafter).facts()
    monkeypatch.setattr(type(pipeline.backend), "describe", lambda self: "another mood")
    assert pipeline.costs_of(pipeline.engine.drafter).facts() == before


class Source(CostSource):
    """Counts what is asked of it."""

    catches_up = True
    longest_catch_up: int | None = None
    weighs_time = False

    def __init__(self, tokens: int | None, plain_s: float = 0.05, unavailable: str | None = None) -> None:
        self._tokens, self._plain_s, self._unavailable = tokens, plain_s, unavailable
        self.asked: list[str] = []

    @property
    def expected_tokens(self) -> int | None:
        return self._tokens

    @property
    def unavailable(self) -> str | None:
        return self._unavailable

    def kept(self) -> PassCosts | None:
        self.asked.append("kept")
        return None

    def measure(self) -> PassCosts | None:
        self.asked.append("measure")
        return None if self._unavailable else COSTS

    def seconds_of_plain_pass(self) -> float:
        self.asked.append("plain")
        return self._plain_s


@pytest.mark.parametrize(
    ("source", "choice", "asked"),
    [
        (Source(None), "auto", ["kept"]),
        (Source(64), "auto", ["kept"]),
        (Source(5000), "auto", ["kept", "plain"]),
        (Source(20_000), "auto", ["kept", "plain", "measure"]),
        (Source(64), "measure", ["kept", "measure"]),
        (Source(20_000), "learn", []),
        (Source(20_000, unavailable="no"), "auto", ["kept"]),
    ],
)
def test_measuring_has_to_be_earned_or_asked_for(source: Source, choice: str, asked: list[str]) -> None:
    found = obtain_costs(source, choice)
    assert source.asked == asked and (found is COSTS) == ("measure" in asked)


def test_a_short_run_is_not_even_timed() -> None:
    source = Source(999, plain_s=100.0)
    assert not is_long_enough(source) and source.asked == []


def test_measuring_where_it_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"^policy\.costs=measure: several processes; use policy\.costs=learn$"):
        obtain_costs(Source(64, unavailable="several processes"), "measure")
