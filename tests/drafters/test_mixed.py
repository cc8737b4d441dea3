"""``mixed`` with a model: whether it is asked, for how much, and what becomes of its tree."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, RequestState, SamplingParams
from spec_sdk.registry import Registry
from spec_sdk.testing import check_tree
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters import asked_model
from spec_sdk_drafters.acceptance_rates import RatesByTemperature
from spec_sdk_drafters.asked_model import HEAD_SHARE, AskedModel, shape_of_draws, share_of_pass
from spec_sdk_drafters.mixed import MixedDrafter, beside
from spec_sdk_drafters.model_source import ModelSource, UsualRates, prior
from spec_sdk_drafters.model_worth import CREDIT, EARNED, MOST_CREDIT, ModelWorth
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()
PLAIN_S = 0.01
PRICED = Budget(4, 9, tuple(0.05 * n for n in range(9)), tokens_per_second=1 / PLAIN_S)
Row = list[tuple[int, float]]


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Scripted(Drafter):
    """Proposes a chain of the tokens that ``says`` gives for a text, with probabilities; takes time on ``clock``."""

    name = "scripted"
    draft_name = "scripted model"

    def __init__(self, says: Callable[[Sequence[int]], Row], clock: Clock, call_s: float = 0.001) -> None:
        super().__init__(None, MODELS)
        self.says, self.clock, self.call_s = says, clock, call_s
        self.started: list[tuple[int, Any]] = []
        self.budgets: list[Budget] = []

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        self.started += [(len(r.tokens), None if prompt_hidden is None else prompt_hidden[0]) for r in requests]

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        self.budgets += budgets
        self.clock.now += self.call_s * len(requests)
        trees = []
        for request, budget in zip(requests, budgets, strict=True):
            tree, node = TreeBuilder(request.pending_token, budget.nodes), 0
            for token, probability in self.says(request.tokens)[: budget.depth]:
                node = tree.add(node, token, "chosen", drafter=self.name, probability=probability)
            trees.append(tree.build().tree)
        return trees


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asked_model, "time", clock)
    return clock


def mixed(model: Drafter | None = None, **options: Any) -> MixedDrafter:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "mixed", "successors": 0, **options})
    drafter: MixedDrafter = plugin(config, MODELS)
    if model is not None:
        drafter.model, drafter.taps = AskedModel(model, MODELS.target.executor), model.taps
    return drafter


def request(tokens: Sequence[int], temperature: float = 0.0) -> RequestState:
    return request_for(tokens, reference_sampler(SamplingParams(temperature=temperature)), 0)


def play(drafter: MixedDrafter, text: Sequence[int], prompt: int, budget: Budget) -> list[int]:
    """The places of ``text`` at which the model was asked, while the target makes it as ``drafter`` has it."""
    model = drafter.model
    assert model is not None
    scripted: Any = model.drafter
    state = request(text[:prompt])
    drafter.start([state.view])
    asked, at = [], prompt
    while at < len(text):
        before = len(scripted.budgets)
        (tree,) = drafter.propose([state.view], [budget])
        asked += [at] * (len(scripted.budgets) > before)
        new = asked_model.accepted(tree, text[at:]) + 1
        state.tokens += text[at : at + new]
        drafter.observe([state.view], [text[at : at + new]])
        at += new
    drafter.finish([state.view])
    return asked


def random_text(length: int, seed: int = 0) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(10**6) for _ in range(length)]


def test_where_time_is_free_the_model_is_always_asked(clock: Clock) -> None:
    text = [*range(1, 9)] * 6
    model = Scripted(lambda tokens: [(0, 0.1)], clock, call_s=1e6)
    assert len(play(mixed(model), text, 9, Budget(4, 9))) > 5


def test_a_model_that_is_never_right_is_hardly_ever_asked(clock: Clock) -> None:
    model = Scripted(lambda tokens: [(-1 + 10**7, 0.9)], clock, call_s=0.15 * PLAIN_S)
    drafter = mixed(model)
    text = random_text(3000)
    asked = play(drafter, text, 10, PRICED)
    # ever more rarely
    assert len([place for place in asked if place > 1500]) < len([place for place in asked if place < 500])
    # in plain steps, what its calls and its nodes cost
    assert 3 < len(asked) * (0.15 + 0.05) < 0.01 * len(text)


def test_a_model_that_is_right_is_asked_where_guesses_are_not_sure(clock: Clock) -> None:
    new, known = random_text(400, 1), [*range(1, 41)] * 12
    text = [*known[:40], *(token for i in range(10) for token in (*new[40 * i : 40 * i + 40], *known[:80]))]
    follows = {tuple(text[i - 2 : i]): text[i : i + 4] for i in range(2, len(text))}
    model = Scripted(lambda tokens: [(t, 0.9) for t in follows.get(tuple(tokens[-2:]), [])], clock, 0.3 * PLAIN_S)
    asked = play(mixed(model), text, 40, PRICED)
    fresh = [place for place in asked if text[place] in new]
    assert len(fresh) > 0.15 * 400 and len(fresh) > 3 * (len(asked) - len(fresh))


def test_a_model_as_large_as_the_target_is_never_started(clock: Clock) -> None:
    model = Scripted(lambda tokens: [(1, 0.9)], clock)
    session: Any = types.SimpleNamespace(executor=MODELS.target.executor)
    model.draft_session = session
    assert play(mixed(model), random_text(600), 200, PRICED) == []
    assert model.started == []


def test_a_model_is_as_large_as_its_matrices() -> None:
    """More layers than the target's may be less to read."""
    target = MODELS.target.executor
    draft: Any = types.SimpleNamespace(layers=2 * target.layers)
    config = target.config
    draft.config = replace(
        config,
        num_layers=draft.layers,
        hidden_size=config.hidden_size // 4,
        num_heads=config.num_heads // 2,
        num_kv_heads=config.num_kv_heads // 2,
    )
    # MLPs of a quarter of the inputs, and attention of half the heads too
    assert 2 / 8 < share_of_pass(draft, target) - HEAD_SHARE < 2 / 4
    draft.layers = config.num_layers
    assert 1 / 8 < share_of_pass(draft, target) - HEAD_SHARE < 1 / 4


def test_what_a_request_drafts_does_not_hang_on_others(clock: Clock) -> None:
    """A sampled answer is taken to be drafted by draws until the model chose, whatever it did for an earlier one."""
    model = Scripted(lambda tokens: [(1, 0.9)], clock)
    drafter = mixed(model)
    assert drafter.model is not None
    for _ in range(2):
        state = request(random_text(20), temperature=1.0)
        drafter.start([state.view])
        assert drafter.model.draws(state.view)
        drafter.propose([state.view], [Budget(2, 9)])
        assert not drafter.model.draws(state.view)
        drafter.finish([state.view])


@pytest.mark.parametrize("prompt", [10, 400])
def test_the_model_is_started_when_it_is_first_asked_with_all_states_until_then(clock: Clock, prompt: int) -> None:
    model = Scripted(lambda tokens: [], clock)
    model.taps = (3,)
    drafter, state = mixed(model), request(random_text(prompt))

    def states(first: int, count: int) -> Hidden:
        return {3: torch.arange(first, first + count, dtype=torch.float32)[:, None]}

    drafter.start([state.view], [states(0, prompt - 1)])
    # plain steps, in which nobody is asked
    for token in (7, 8):
        state.tokens.append(token)
        drafter.observe([state.view], [[token]], [states(len(state.tokens) - 2, 1)])
    assert model.started == []
    drafter.propose([state.view], [Budget(2, 5)])
    [(tokens, hidden)] = model.started
    assert tokens == prompt + 2
    assert hidden[3][:, 0].tolist() == list(range(prompt + 1))


def test_what_the_model_chose_competes_with_the_guesses(clock: Clock) -> None:
    """Of few nodes those go to the more probable, whoever guessed them; and a token of both is one node."""
    text = [1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2]
    model = Scripted(lambda tokens: [(50, 0.9), (51, 0.9), (52, 0.9)], clock)
    state, drafter = request(text), mixed(model, min_probability=0.0)
    drafter.start([state.view])
    (tree,) = drafter.propose([state.view], [Budget(3, 3)])
    (wide,) = drafter.propose([state.view], [Budget(3, 40)])
    check_tree(wide)
    assert {wide.token_N[node] for node in range(wide.size)} >= {50, 51, 52, 3, 4}
    assert {draw.kind for draws in wide.draws_N for draw in draws} == {"chosen"}
    agreeing = Scripted(lambda tokens: [(3, 0.9), (4, 0.9)], clock)
    agreed = mixed(agreeing, min_probability=0.0)
    agreed.start([state.view])
    (both,) = agreed.propose([state.view], [Budget(3, 3)])
    assert both.token_N[1:] == (3, 4) and tree.size == 3


def test_a_tree_is_pruned_by_the_price_of_its_nodes(clock: Clock) -> None:
    model = Scripted(lambda tokens: [(50, 0.9), (51, 0.3), (52, 0.3)], clock)
    sizes = []
    for price in (0.0, 0.05, 0.3, 0.95):
        state, drafter = request(random_text(9)), mixed(model, min_probability=0.0)
        drafter.start([state.view])
        (tree,) = drafter.propose([state.view], [Budget(3, 9, tuple(price * n for n in range(9)))])
        sizes.append(tree.size)
    assert sizes == sorted(sizes, reverse=True) and (sizes[0], sizes[2], sizes[3]) == (4, 2, 1)


def test_the_rates_of_a_model_are_learned(clock: Clock) -> None:
    """It says 0.9 of every token. One in four is right, and the next is then not asked for: a third."""
    text = random_text(800, 2)
    right = {text[i]: text[i + 1] for i in range(len(text) - 1) if i % 4 == 0}
    model = Scripted(lambda tokens: [(right.get(tokens[-1], 5), 0.9)], clock, call_s=0.0)
    drafter = mixed(model)
    play(drafter, text, 10, Budget(1, 2))
    assert drafter.model is not None
    usual = drafter.model._usual.of(0.0)
    assert usual.rate(("sure", 1, 8)) == pytest.approx(1 / 3, abs=0.1) and prior(("sure", 1, 8)) > 0.6


def test_draws_leave_the_guesses_their_share() -> None:
    budget = Budget(4, 9, tuple(0.1 * n * n for n in range(9)))
    left = beside(TokenTree.chain(1, [2, 3]), budget)
    assert (left.depth, left.nodes) == (4, 7)
    assert left.node_costs == pytest.approx([0.1 * (n * n - 4) for n in range(2, 9)])


def test_a_tree_of_draws_is_as_deep_and_wide_as_pays() -> None:
    def shape(right: float, sibling: float, level: float, node: float) -> tuple[int, int]:
        source = ModelSource(UsualRates(mixed_rates()))
        for _ in range(300):
            for depth in (1, 2, 3):
                source.rates.observe(("drawn", depth, 0), random.random() < right)
                source.rates.observe(("drawn", depth, 1), random.random() < sibling)
                source.rates.observe(("drawn", depth, 2), False)
        return shape_of_draws(source, 6, Budget(6, 40, tuple(node * n for n in range(40))), level, 1.0)

    def mixed_rates() -> Any:
        return RatesByTemperature(prior, keep=True).of(1.0)

    random.seed(0)
    assert shape(0.9, 0.01, 0.1, 0.02) == (6, 7)
    assert shape(0.5, 0.01, 0.15, 0.02) == (2, 3)
    assert shape(0.1, 0.01, 0.3, 0.02) == (1, 2)
    depth, nodes = shape(0.5, 0.4, 0.15, 0.02)
    assert nodes == 1 + 2 * depth


def test_worth_is_weighed_by_how_sure_the_guesses_are() -> None:
    worth = ModelWorth(0.1)
    for _ in range(60):
        worth.observe(0.0, 1.0, 1, 1, 0.002, 100.0)
        worth.observe(0.9, -0.1, 1, 1, 0.002, 100.0)
    assert worth.asks(0.0, 1, 100, 100.0) and not worth.asks(0.9, 1, 100, 100.0)
    # a second that is worth five times as much
    assert not worth.asks(0.0, 1, 100, 600.0)


def test_catching_up_must_pay_before_the_answer_ends() -> None:
    worth = ModelWorth(0.1)
    for _ in range(200):
        worth.observe(0.0, 0.5, 1, 1, 0.002, 100.0)
    worth.observe(0.0, 0.5, 1, 100, 0.102, 100.0)
    assert worth.catch_up(100, 100.0) == pytest.approx(10, rel=0.1)
    assert worth.asks(0.0, 100, 200, 100.0) and not worth.asks(0.0, 100, 20, 100.0)
    assert worth.asks(0.0, 1, 20, 100.0)


def test_what_catching_up_takes_may_be_waited_for() -> None:
    """More than the first credit, and less than what the rest of the answer gains."""
    worth = ModelWorth(0.25)
    assert worth.catch_up(500, 100.0) > CREDIT
    waited = next(cycles for cycles in range(1000) if worth.asks(0.0, 500, 400, 100.0))
    assert waited == pytest.approx((worth.catch_up(500, 100.0) - CREDIT) / EARNED, abs=2)
    # where the rest of an answer does not pay for it, waiting changes nothing
    hopeless = ModelWorth(0.25)
    assert not any(hopeless.asks(0.0, 500, 4, 100.0) for _ in range(4 * waited))
    assert hopeless._credit == CREDIT


def test_what_was_waited_for_is_not_lost_to_others() -> None:
    """Requests with short texts ask meanwhile, and gain."""
    worth, waited = ModelWorth(0.25), 0
    price = worth.catch_up(4000, 100.0)
    assert price > MOST_CREDIT
    while not worth.asks(0.0, 4000, 4000, 100.0) and waited < 5000:
        waited += 1
        if waited % 4 == 0:
            worth.observe(0.0, 1.0, 1, 1, 0.0025, 100.0)
    assert waited < price / EARNED


def test_a_model_that_was_of_no_use_is_asked_again_once_it_is() -> None:
    """With a prompt to catch up with for each answer, and nothing left of the credit."""
    worth, asked, unfed = ModelWorth(0.25), list[int](), 0
    for step in range(6000):
        unfed = 200 if step % 200 == 0 else unfed + 1
        if worth.may_ask(100.0) and worth.asks(0.0, unfed, 200 - step % 200, 100.0):
            asked.append(step)
            worth.observe(0.0, float(step > 200), 1, unfed, 0.0025 + 5e-5 * unfed * (unfed > 15), 100.0)
            unfed = 0
    assert sum(step > 5000 for step in asked) > 900


def test_a_model_that_agrees_with_the_guesses_gains_nothing(clock: Clock) -> None:
    text = [*range(1, 9)] * 40
    model = Scripted(lambda tokens: [(tokens[-1] % 8 + 1, 0.9)], clock)
    drafter = mixed(model)
    play(drafter, text, 40, Budget(1, 3))
    assert drafter.model is not None
    (worth,) = drafter.model._worth.values()
    assert sum(worth._calls) > 30 and sum(worth._gained) == pytest.approx(0, abs=1)


def test_levels_are_worth_what_they_gave(clock: Clock) -> None:
    """The second token is never right, however sure the model is."""
    text = random_text(300, 3)
    after = dict(zip(text, text[1:], strict=False))
    model = Scripted(lambda tokens: [(after.get(tokens[-1], 5), 0.9), (5, 0.9)], clock)
    drafter = mixed(model)
    play(drafter, text, 10, PRICED)
    assert drafter.model is not None
    (worth,) = drafter.model._worth.values()
    assert worth.reach_worth < 0.15
    # a level is drafted only where the model's own probabilities promise so much more than its price
    assert model.budgets[-1].level_cost == pytest.approx(worth.level_cost(1 / PLAIN_S) / worth.reach_worth, rel=0.1)


@pytest.mark.parametrize(("growth", "stops"), [("beam", True), ("dynamic", True), ("auto", True), ("static", False)])
def test_a_level_that_is_not_worth_its_time_is_not_drafted(growth: str, stops: bool) -> None:
    """Drawn children are never stopped by what was drawn."""
    options = {"widths": [2, 1]} if growth == "static" else {"width": 2}
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "draft_model", "growth": growth, **options})

    def depth(temperature: float, cost: float, seed: int = 0) -> int:
        drafter, state = plugin(config, MODELS), request([5, 9, 3, seed], temperature)
        drafter.start([state.view])
        (tree,) = drafter.propose([state.view], [Budget(5, 40, level_cost=cost)])
        check_tree(tree)
        return int(tree.depth)

    assert depth(0.0, 0.0) == 5
    # two nodes of a level are reached with a probability of 1 at most
    assert depth(0.0, 1.01) == (1 if stops else 5)
    depths = [depth(0.0, cost) for cost in (1e-4, 1e-3, 1e-2, 0.1, 1.01)]
    assert depths == sorted(depths, reverse=True)
    if growth in ("auto", "static"):
        assert {depth(1.0, 1.01, seed) for seed in range(8)} == {5}
