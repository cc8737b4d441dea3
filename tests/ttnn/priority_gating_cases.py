"""Speculation on attention on one TT-NN device and on a mesh of two. Run by ``test_attention_speculation.py``."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import AttentionReport
from spec_sdk.model.executor import Executor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.session import Scores, Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.testing.executors import check_batches, check_closed_trees, check_padding
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.side_by_side import SideBySide
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_backends.ttnn.executor import TtnnExecutor
from spec_sdk_backends.ttnn.mesh_executor import MeshCache, MeshExecutor
from spec_sdk_backends.ttnn.model import TtnnModel, load_model
from spec_sdk_backends.ttnn.simulated import SimulatedOperations
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_predictors.quest import Quest, QuestConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from spec_sdk_verifiers.static import Static, StaticConfig
from tests.support.tiny_decoder import ModelTensors

LAYERS = 5
SOURCE = ModelTensors("smollm", 0, num_hidden_layers=LAYERS)
MODEL = load_model(SOURCE, SimulatedOperations(torch.float32))
PROMPTS = {0: [7 + 11 * i % 83 for i in range(50)], 1: [5, 9, 17], 2: [3 + 5 * i % 71 for i in range(44)]}
"""By slot; the second is too short for anything to be guessed."""
VERIFIERS: dict[str, L2Threshold | Static] = {
    "by heads": L2Threshold(L2ThresholdConfig(threshold=0.55, never=[2])),
    "projected": L2Threshold(L2ThresholdConfig(threshold=0.5, layer_thresholds={0: 0.9, 3: 0.0}, space="residual")),
    "all hits": L2Threshold(L2ThresholdConfig(threshold=100.0)),
    "all misses": L2Threshold(L2ThresholdConfig(threshold=0.0)),
    "static": Static(StaticConfig(layers=[1, 2, 4])),
}
SCORED = {"by heads": [0, 1, 2], "projected": [0]}
"""Slots whose trees are scored together; the others' tests score the first one."""
CONFORMANCE = [(TtnnExecutor, check_batches), (TtnnExecutor, check_padding), (MeshExecutor, check_closed_trees)]
TAPS = range(LAYERS + 1)

Log = list[tuple[int, str]]


def session_on(executor: Executor, verifier: Any, slots: Sequence[int] = (0,), predictor: Any = None) -> Session:
    """With prompts in these slots."""
    sink = predictor or AttentionSink(AttentionSinkConfig(first=2, last=4))
    session = Session(executor, AttentionSpeculativeRunner(lambda: sink, verifier))
    for slot in slots:
        session.prefill(slot, PROMPTS[slot])
    return session


def small_tree() -> TokenTree:
    """A root with two children, one of which has a child."""
    tree = TreeBuilder(11)
    for parent, token in ((0, 5), (0, 23), (1, 41)):
        tree.add(parent, token, "chosen")
    return tree.build().tree


def reports_of(scores: Sequence[Scores]) -> list[AttentionReport]:
    return [score.attention for score in scores if score.attention is not None]


@pytest.fixture(params=VERIFIERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_mesh_computes_what_one_device_does(name: str) -> None:
    """States, verdicts and caches of two devices are those of one, bit for bit, and those of torch but for rounding."""
    verifier, slots = VERIFIERS[name], SCORED.get(name, [0])
    log: Log = []
    mesh = session_on(MeshExecutor(MODEL, lambda device, operation: log.append((device, operation))), verifier, slots)
    alone = session_on(TtnnExecutor(MODEL), verifier, slots)
    in_torch = session_on(
        TorchExecutor(load_decoder(SOURCE, torch.device("cpu"), torch.float32), Ops()), verifier, slots
    )
    log.clear()
    trees = [small_tree() if slot != 2 else TreeBuilder(9).build().tree for slot in slots]
    scores, single, reference = (session.score(slots, trees, TAPS) for session in (mesh, alone, in_torch))
    assert reports_of(scores) == reports_of(single)
    for ours, theirs, right in zip(scores, single, reference, strict=True):
        assert torch.equal(ours.logits_NV, theirs.logits_NV)
        for layer in TAPS:
            assert torch.equal(ours.hidden[layer], theirs.hidden[layer])
            far = (ours.hidden[layer] - right.hidden[layer]).abs().max() / right.hidden[layer].abs().max()
            assert far <= 1e-5, f"layer {layer}"
        assert ours.attention is not None and right.attention is not None
        assert ours.attention.hit == right.attention.hit
        errors, right_errors = (
            [e for e in report.error if e is not None] for report in (ours.attention, right.attention)
        )
        assert errors == pytest.approx(right_errors, rel=1e-3)
    both = mesh.cache
    assert isinstance(both, MeshCache)
    for slot, tree in zip(slots, trees, strict=True):
        written = len(PROMPTS[slot]) + tree.size
        for layer in range(LAYERS):
            for side in ("k", "v"):
                one, other = (getattr(cache, side)[slot][layer].to_torch()[:written] for cache in both.devices)
                assert torch.equal(one, other) and bool(one.any())
    # requests go one after the other, the larger trees' pass after that of single rows
    hits = [
        report.hit for report in reports_of([scores[i] for i in sorted(range(len(slots)), key=lambda i: trees[i].size)])
    ]
    assert log == [step for hit in hits if any(h is not None for h in hit) for step in computed(hit)]
    guessed = [h for report in hits for h in report]
    kinds = {"by heads": {True, False, None}, "projected": {True, False}, "all hits": {True}, "all misses": {False}}
    assert set(guessed) == kinds.get(name, {True, None})


def computed(hits: Sequence[bool | None]) -> Log:
    """Who computes what in a pass with these verdicts, in the order of dispatch (ALSpec, Fig. 6)."""
    steps: Log = []
    sender, awake = 0, {0}
    for hit in hits:
        receiver = 1 - sender
        steps += [(device, "pre_attention") for device in sorted(awake)]
        if hit is None:
            steps += [(sender, "attention"), (sender, "post_attention")]
            awake = {sender}
            continue
        # the receiver goes on before the sender has read the other keys
        steps += [(sender, "partial"), (receiver, "post_attention"), (sender, "combine")]
        if hit:
            sender, awake = receiver, {receiver}
        else:
            steps.append((sender, "post_attention"))
            awake = {0, 1}
    return steps


def test_what_is_committed_is_there_in_the_next_pass() -> None:
    """Both devices' caches keep the accepted path, and a larger cache what the smaller one had."""
    verifier = VERIFIERS["by heads"]
    mesh, alone = session_on(MeshExecutor(MODEL), verifier), session_on(TtnnExecutor(MODEL), verifier)
    tree = small_tree()
    leaf = tree.path_to(tree.size - 1)
    for session in (mesh, alone):
        session.score([0], [tree])
        session.commit([0], [leaf])
        session.reserve(4, 200)
    assert mesh.cache.nbytes == 2 * alone.cache.nbytes and mesh.cache.slots == 4
    scores, single = (session.score([0], [tree], TAPS)[0] for session in (mesh, alone))
    assert torch.equal(scores.logits_NV, single.logits_NV) and scores.attention == single.attention


@pytest.mark.parametrize(("make", "check"), CONFORMANCE, ids=lambda part: part.__name__)
def test_conformance(make: Callable[[TtnnModel], TtnnExecutor], check: Callable[[SideBySide], None]) -> None:
    """Of the executors' conformance suite what this runner may do in another way than the plain one."""
    config = dataclasses.replace(TINY, num_layers=2, num_heads=2, num_kv_heads=1, max_context=80)
    source = RandomWeights(config, 0)
    reference = TorchExecutor(load_decoder(source, torch.device("cpu"), torch.float32), Ops())
    verifier = L2Threshold(L2ThresholdConfig(threshold=0.2))

    def runner() -> AttentionSpeculativeRunner:
        return AttentionSpeculativeRunner(lambda: AttentionSink(AttentionSinkConfig(size=3)), verifier)

    executor = make(load_model(source, SimulatedOperations(torch.float32)))
    check(SideBySide(executor, reference, runner, 1e-5, random.Random(0), check.__name__))


def test_others_are_refused_by_name() -> None:
    quest = Quest(QuestConfig())
    with pytest.raises(UserError, match="predictor 'quest': backend ttnn has attention_sink only"):
        session_on(TtnnExecutor(MODEL), VERIFIERS["by heads"], predictor=quest).score([0], [small_tree()])

    class OwnVerifier(L2Threshold):
        name = "own"

    with pytest.raises(UserError, match="attention_verifier 'own': backend ttnn has l2_threshold and static only"):
        session_on(MeshExecutor(MODEL), OwnVerifier(L2ThresholdConfig())).score([0], [small_tree()])
