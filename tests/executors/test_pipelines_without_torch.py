"""Target and draft on an executor in NumPy, through the same pipelines and scheduler: what a device without torch gets.

No decoder, cache or executor of torch exists in these runs, and their tokens are those of ``backend=cpu``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from tests.executors.numpy_executor import NumpyBackend, NumpyExecutor
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import write_checkpoint

PROMPTS = ([5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9], [41, 7], [7 + 11 * i % 83 for i in range(37)])
NEW_TOKENS = 12
SAMPLED = ("sampling.temperature=0.8", "sampling.seed=11")
LAYERS = 6
SINK = ("predictor.size=3",)
RUNS: dict[str, tuple[str, ...]] = {
    "vanilla": ("pipeline=vanilla",),
    "sd_chain, cut": ("pipeline=sd_chain",),
    "sd_chain, own draft": ("pipeline=sd_chain", "model.draft=DRAFT"),
    "specinfer_tree, cut": ("pipeline=specinfer_tree",),
    "specinfer_tree, own draft": ("pipeline=specinfer_tree", "model.draft=DRAFT"),
    "easyspec_paper, cut": ("pipeline=easyspec_paper",),
    "easyspec_paper, own draft": ("pipeline=easyspec_paper", "model.draft=DRAFT", "drafter.groups=[[0],[1,2],[3]]"),
    "easyspec_paper, fuzzy cache": ("pipeline=easyspec_paper", "drafter.calibrate=false"),
    "layer_skip_tree, cut": ("pipeline=layer_skip_tree", "drafter.layers=5"),
    "alspec": ("pipeline=alspec", "error_bounds=true", *SINK, "attention_verifier.threshold=0.3"),
    "alspec, residual, layers": (
        "pipeline=alspec",
        *SINK,
        "attention_verifier.space=residual",
        "attention_verifier.never=[0]",
        "attention_verifier.layer_thresholds={1: 0.6}",
        "attention_verifier.threshold=0.3",
    ),
    "alspec, static": ("pipeline=alspec", *SINK, "attention_verifier=static", "attention_verifier.layers=[2,5]"),
    "alspec_easyspec_tree": ("pipeline=alspec_easyspec_tree", *SINK, "attention_verifier.threshold=0.3"),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two checkpoints, ``target`` and ``draft``, of other weights and depths."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder / "target", "smollm", num_hidden_layers=LAYERS)
    write_checkpoint(folder / "draft", "qwen3", seed=1, num_hidden_layers=4)
    return folder


@pytest.fixture
def registry() -> Registry:
    """All installed plugins, and the backend of this test beside them."""
    # discover() keeps one registry per process, which no other test is to find changed
    registry: Registry = Registry.discover.__wrapped__(Registry)
    registry.register(NumpyBackend, "tests")
    assert not registry.problems
    return registry


def pipeline(backend: str, checkpoints: Path, overrides: Sequence[str], registry: Registry) -> Pipeline:
    named = [override.replace("DRAFT", str(checkpoints / "draft")) for override in overrides]
    settings = settings_of(f"model.target={checkpoints / 'target'}", "backend=cpu", *named)
    return build_pipeline(dataclasses.replace(settings, backend={"name": backend}), registry)


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on whoever makes a decoder, cache or executor in torch fails."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("this run has an executor that is not torch")

    monkeypatch.setattr("spec_sdk.contracts.backend.load_decoder", refuse)
    for made_of_torch in (Decoder, KVCache, TorchExecutor):
        monkeypatch.setattr(made_of_torch, "__init__", refuse)


def answers_of(engine: TokenEngine) -> tuple[list[list[int]], list[list[dict[str, Any]]]]:
    """The tokens of every prompt, added at once, and the cycles of each."""
    cycles: list[list[dict[str, Any]]] = [[] for _ in PROMPTS]
    ids = [
        engine.add(TokenRequest(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True, emit=events.append))
        for prompt, events in zip(PROMPTS, cycles, strict=True)
    ]
    tokens: dict[int, list[int]] = {request: [] for request in ids}
    while engine.busy:
        for progress in engine.step():
            assert progress.error is None, progress.error
            tokens[progress.request] += progress.tokens
    return [tokens[request] for request in ids], [[e for e in events if e["event"] == "cycle"] for events in cycles]


DRAWN = ("vanilla", "sd_chain, own draft", "specinfer_tree, cut", "easyspec_paper, cut", "alspec")
"""A chain, both kinds of tree and a guess of attention: sampled. What the others add, greedy, is sampled alike."""


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        pytest.param(
            *(name, sampling),
            id=f"{name}-{'sampled' if sampling else 'greedy'}",
            marks=[pytest.mark.full] * ((name in DRAWN) != bool(sampling) and name != "vanilla"),
        )
        for name in RUNS
        for sampling in ((), SAMPLED)
    ],
)
def test_tokens_are_those_of_the_torch_executor(
    name: str,
    sampling: tuple[str, ...],
    checkpoints: Path,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One prompt after the other in one slot, then all three at once: with the cycles of the torch executor."""
    overrides = (*RUNS[name], *sampling)
    reference = pipeline("cpu", checkpoints, overrides, registry)
    expected = {slots: answers_of(reference.new_engine(slots)) for slots in (1, 3)}
    without_torch(monkeypatch)
    running = pipeline("numpy", checkpoints, overrides, registry)
    assert isinstance(running.models.target.executor, NumpyExecutor)
    for slots, (tokens, cycles) in expected.items():
        engine = running.new_engine(slots)
        found, found_cycles = answers_of(engine)
        assert found == tokens, f"{slots} slots"
        for theirs, ours in zip(cycles, found_cycles, strict=True):
            assert [shape_of(cycle) for cycle in ours] == [shape_of(cycle) for cycle in theirs]
            for one, other in zip(ours, theirs, strict=True):
                same_attention(one["attention"], other["attention"])
    assert [len(answer) for answer in found] == [NEW_TOKENS] * len(PROMPTS)
    if "cut" in name:
        # a draft of random weights of its own agrees by chance only
        assert sum(cycle["accepted"] for cycles in found_cycles for cycle in cycles) > 0


@pytest.mark.parametrize("name", ["alspec", "alspec, static"])
def test_attention_is_guessed(name: str, checkpoints: Path, registry: Registry) -> None:
    """Some predictions are accepted; with a threshold others are not; a layer that never speculates has no verdict."""
    _, cycles = answers_of(pipeline("numpy", checkpoints, RUNS[name], registry).new_engine(3))
    hits = [hit for events in cycles for event in events for hit in event["attention"]["hit"]]
    assert True in hits and None in hits
    assert (False in hits) == (name == "alspec")


def shape_of(cycle: dict[str, Any]) -> list[Any]:
    return [cycle[key] for key in ("step", "prefix", "budget", "tree_nodes", "drafted", "accepted", "tokens")]


def same_attention(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> None:
    """The same verdicts, and measurements that differ by rounding only."""
    if ours is None or theirs is None:
        # a runner that measures nothing reports nothing
        assert ours is None and theirs is None
        return
    assert ours["hit"] == theirs["hit"] and ours["space"] == theirs["space"]
    # a run that asks for no error bounds has no norms of states; this executor tells them all the same
    for key in ("error", "difference", *["state_norm"] * (theirs["state_norm"] is not None)):
        # a layer that guessed nothing has no error
        one, other = ([value for value in report[key] if value is not None] for report in (ours, theirs))
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("pipeline=alspec", "predictor=quest"), "predictor 'quest': backend numpy has attention_sink only"),
        (("pipeline=vanilla", "model.dtype=bfloat16"), "backend numpy computes in float32, not in bfloat16"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    overrides: tuple[str, ...], message: str, checkpoints: Path, registry: Registry
) -> None:
    with pytest.raises(UserError, match=message):
        running = pipeline("numpy", checkpoints, overrides, registry)
        list(running.stream(PROMPTS[0], max_new_tokens=2))


def test_the_session_is_the_ordinary_one(checkpoints: Path, registry: Registry) -> None:
    running = pipeline("numpy", checkpoints, RUNS["sd_chain, own draft"], registry)
    assert type(running.engine.target) is Session
