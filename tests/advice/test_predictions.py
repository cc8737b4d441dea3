"""Predictions by hand, and in worlds whose best tree is known."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from spec_sdk.advice.choosing import Measured, Predicted, choice, measured, out_of_reach, predict_each
from spec_sdk.advice.cycles import Cycle, Shape
from spec_sdk.advice.predicting import ADAPTIVE_LOSS, Means, Prediction, Probe, adaptive_seconds, predict
from spec_sdk.advice.probing import DEEPEST, Answers, ProbePolicy, largest_shape
from spec_sdk.bench.cost_curve import CostCurve
from tests.advice.worlds import PLAIN_S, World

TOKENS, ANSWERS = 64, 120
WORLDS = {
    "cheap passes, a good draft": World(0.8, 0.01, 0.001),
    "dear passes, a good draft": World(0.8, 0.25, 0.001),
    "cheap passes, a poor draft": World(0.4, 0.01, 0.0005, 0.001),
    "a dear draft": World(0.7, 0.05, 0.006),
    "much to do on the host": World(0.7, 0.02, 0.0005, 0.008),
    "a text that copies": World(0.2, 0.02, 0.00002, 0.001, copied=0.95),
    "a text that copies, and dear passes": World(0.05, 0.2, 0.00002, 0.001, copied=0.98),
    "hardly a miss": World(0.97, 0.05, 0.0005, 0.001),
}
BETWEEN = ("cheap passes, a good draft", "a dear draft", "a text that copies")
"""Outside the full tier those worlds are left out that lie between others."""
TOLERANCE = 0.02
SHAPES = [Shape(d, w) for d, w in itertools.product(range(1, DEEPEST + 1), (1, 2, 3, 4))]


def probed(world: World, width: int = 4) -> Probe:
    """What the probe of a drafter with trees of ``width`` nodes a level sees of short answers."""
    policy = ProbePolicy(Shape(DEEPEST, width))

    def shape_of(cycle: int) -> Shape:
        budget = policy.budget(None)  # type: ignore[arg-type]
        policy.observe({"event": "cycle"})
        return Shape(budget.depth, min(width, (budget.nodes - 1) // budget.depth))

    cycles = {seed: world.play(world.text(TOKENS, seed), shape_of) for seed in range(ANSWERS)}
    return Probe(cycles, dict.fromkeys(cycles, world.plain(TOKENS)), DEEPEST, TOKENS)


def true_speedups(world: World) -> dict[Shape, float]:
    """What fixed trees come to on the same answers."""
    texts = [world.text(TOKENS, seed) for seed in range(ANSWERS)]

    def seconds(shape: Shape) -> float:
        return sum(cycle.seconds for ranks in texts for cycle in world.play(ranks, lambda _: shape))

    return {shape: ANSWERS * TOKENS * PLAIN_S / seconds(shape) for shape in SHAPES}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name in BETWEEN)) for name in WORLDS])
def test_every_tree_is_predicted_and_the_best_one_found(name: str) -> None:
    world, probe = WORLDS[name], probed(WORLDS[name])
    true, predictions = true_speedups(world), predict(probe, world.curve)
    assert {prediction.shape for prediction in predictions} == set(SHAPES)
    for prediction in predictions:
        assert prediction.shape is not None
        predicted = prediction.speedup(probe.plain_s(world.curve))
        assert predicted == pytest.approx(true[prediction.shape], rel=TOLERANCE), prediction.shape
    best = predictions[0].shape
    assert best is not None and true[best] >= 0.96 * max(true.values())


@pytest.mark.parametrize(
    ("world", "plain"),
    [(World(0.2, 0.3, 0.004), True), (World(0.5, 0.3, 0.009), True), (World(0.7, 0.05, 0.001), False)],
)
def test_plain_decoding_is_advised_where_nothing_beats_it(world: World, plain: bool) -> None:
    assert (max(true_speedups(world).values()) < 1.03) == plain
    probe = probed(world)
    answers = Answers({"vanilla": dict(probe.plain), "draft": dict(probe.cycles)})  # type: ignore[arg-type]
    found = predict_each(answers, "vanilla", {"draft": DEEPEST}, world.curve)
    assert (choice([], found) is None) == plain


def test_a_probe_is_shallower_where_passes_are_dear() -> None:
    def curve(node: float) -> CostCurve:
        return World(0.5, node, 0.0).curve

    assert largest_shape(curve(0.05), branches=True) == Shape(8, 7)
    assert largest_shape(curve(0.2), branches=True) == Shape(7, 2)
    assert largest_shape(curve(0.9), branches=True) == Shape(4, 2)
    assert largest_shape(curve(0.9), branches=False) == Shape(8, 1)


def test_a_shape_by_hand() -> None:
    """Two cycles of 3 and 1 tokens: 4 tokens in 2 · (draft 4 ms + pass 12 ms), plain decoding takes 40 ms."""
    curve = CostCurve({(0, 1): 0.010, (0, 3): 0.012})
    deep = [
        Cycle(0, 2, 3, (1, 1), (1, 1), 3, 0.004, 0.012),
        Cycle(3, 2, 3, (), (1, 1), 1, 0.004, 0.012),
    ]
    plain = [Cycle(i, 0, 1, (), (), 1, 0.0, 0.010) for i in range(4)]
    probe = Probe({5: deep}, {5: plain}, 2)
    two = next(p for p in predict(probe, curve) if p.shape == Shape(2, 1))
    assert dataclasses.astuple(two.means) == pytest.approx((2.0, 2, 3, 0.004, 0.012, 0.0))
    assert two.seconds == {5: pytest.approx(0.032)}
    assert two.speedup(probe.plain_s(curve)) == pytest.approx(0.040 / 0.032)
    # where 4 tokens were asked for, the last one is a plain step, for which nothing is drafted
    asked = next(p for p in predict(dataclasses.replace(probe, most_tokens=4), curve) if p.shape == Shape(2, 1))
    assert asked.seconds == {5: pytest.approx(0.016 + 0.010)}


def test_a_slow_spell_of_the_machine_is_no_speed_up() -> None:
    """Two prompts, alike but that all passes took twice as long during the first: each gains what both gain."""
    curve = CostCurve({(0, 1): 0.010, (0, 3): 0.010})

    def ran(slow: float) -> tuple[list[Cycle], list[Cycle]]:
        return (
            [Cycle(0, 12, 3, (1,), (1, 1), 2, 0.0, slow * 0.010)] * 8,
            [Cycle(0, 0, 1, (), (), 1, 0.0, slow * 0.010)] * 16,
        )

    both = {0: ran(2.0), 1: ran(1.0)}
    probe = Probe({i: own for i, (own, _) in both.items()}, {i: plain for i, (_, plain) in both.items()}, None)
    (found,) = predict(probe, curve)
    for prompts in ([0], [1], [0, 1]):
        assert found.speedup(probe.plain_s(curve), prompts) == pytest.approx(2.0), prompts


def test_a_pipelines_own_passes_over_one_node_count_where_there_are_enough() -> None:
    """With hooks of a drafter a plain step takes 15 ms instead of 10."""
    curve = CostCurve({(0, 1): 0.010, (0, 2): 0.010})
    plain = [Cycle(0, 0, 1, (), (), 1, 0.0, 0.010)] * 20
    for own, seconds in ((3, 0.010), (4, 0.015)):
        silent = [Cycle(0, 4, 1, (), (), 1, 0.0, 0.015)] * own
        (found,) = predict(Probe({0: silent}, {0: plain}, None), curve)
        assert found.seconds[0] == pytest.approx(20 * seconds, rel=0.1 if own == 3 else 1e-6)


def test_a_policy_of_its_own_is_predicted_as_it_ran() -> None:
    curve = CostCurve({(0, 1): 0.010, (0, 4): 0.010})
    cycles = [Cycle(0, 12, 4, (1, 1, 1), (1, 1, 1), 4, 0.001, 0.014), Cycle(4, 0, 1, (), (), 1, 0.0, 0.010)]
    plain = [Cycle(i, 0, 1, (), (), 1, 0.0, 0.010) for i in range(10)]
    (found,) = predict(Probe({0: cycles}, {0: plain}, None), curve)
    assert found.shape is None
    # ten tokens, where five took 25 ms
    assert found.seconds == {0: pytest.approx(0.050)}
    assert found.means.host_s == pytest.approx(0.001, abs=0.002)


def test_adaptive_takes_the_best_of_every_prompt() -> None:
    means = Means(1, 1, 2, 0, 1, 0)
    shapes = [Prediction(Shape(1, 1), means, {0: 1.0, 1: 4.0}), Prediction(Shape(8, 1), means, {0: 3.0, 1: 5.0})]
    assert adaptive_seconds(shapes, {0: 2.0, 1: 3.0}) == {0: 1.0 * (1 + ADAPTIVE_LOSS), 1: 3.0 * (1 + ADAPTIVE_LOSS)}


def predicted(name: str, seconds: float) -> Predicted:
    means = Means(2, 2, 3, 0.001, 0.010, 0.0)
    return Predicted(name, Shape(2, 1), False, means, {0: seconds, 1: seconds}, {0: 1.0, 1: 1.0}, 0.01, [])


def test_those_far_behind_are_dropped_and_the_best_is_chosen() -> None:
    found = [predicted("fast", 0.5), predicted("near", 0.6), predicted("slow", 1.0)]
    assert [each.speedup for each in found] == [2.0, pytest.approx(1 / 0.6), 1.0]
    assert out_of_reach(found) == {"slow"}
    # where nothing beats plain decoding, what is near it stays
    assert out_of_reach([predicted("a", 1.1), predicted("b", 1.3), predicted("c", 2.0)]) == {"c"}
    assert choice([], found) == "fast"
    assert choice([Measured("near", 1.6, 1.8, 50, 2), Measured("fast", 2.0, 1.5, 40, 2)], found) == "near"
    assert choice([Measured("fast", 2.0, 1.02, 40, 2)], found) is None


def test_what_was_measured_is_set_beside_what_was_predicted_of_the_same_prompts() -> None:
    curve = CostCurve({(0, 1): 0.010, (0, 2): 0.010})
    ours = [Cycle(0, 1, 2, (1,), (1,), 2, 0.0, 0.010)] * 2
    plain = [Cycle(0, 0, 1, (), (), 1, 0.0, 0.010)] * 4
    answers = Answers({"vanilla": {0: plain, 1: plain}, "draft": {0: ours}})
    each = Predicted("draft", None, False, Means(2, 1, 2, 0, 0.01, 0), {0: 0.025, 1: 1.0}, {0: 0.04, 1: 0.04}, 0.01, [])
    (found,) = measured(answers, "vanilla", {"draft": each}, curve)
    assert (found.name, found.prompts) == ("draft", 1)
    assert [found.predicted, found.speedup, found.tokens_per_second] == pytest.approx([1.6, 2.0, 200.0])
    assert found.error == pytest.approx(-0.2)
