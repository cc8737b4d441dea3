"""Drafters that guess without a model: what they propose, what they learn, what they keep."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, RequestState, SamplingParams, TopTokens
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import UserError
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, check_tree
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.acceptance_rates import FORGET, PRIOR_WEIGHT, AcceptanceRates, RatesByTemperature
from spec_sdk_drafters.guess_source import GuessSource
from spec_sdk_drafters.guessing import Guesser, first_nodes, least_price, worthwhile
from spec_sdk_drafters.recycling_table import RecyclingTable
from spec_sdk_drafters.suffix_source import KeptAnswers
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_models import TinyModels

VOCABULARY = 24
MODELS = TinyModels()
WITHOUT_MODEL: dict[str, dict[str, Any]] = {
    "chain": {"name": "prompt_lookup"},
    "matches": {"name": "prompt_lookup", "matches": 4},
    "suffix": {"name": "suffix"},
    "everything": {"name": "suffix", "min_probability": 0.0},
    "recycling": {"name": "token_recycling", "min_probability": 0.0},
    "mixed": {"name": "mixed", "min_probability": 0.01},
    "no recycling": {"name": "mixed", "successors": 0},
    "lookahead": {"name": "lookahead", "window": 2, "ngram": 3, "guesses": 2},
    "bigrams": {"name": "lookahead", "window": 3, "ngram": 2, "pool_from_text": False},
    "merged": {"name": "merged", "members": [{"name": "token_recycling", "successors": 3}, {"name": "mixed"}]},
}


def drafter_of(name: str, **options: Any) -> Any:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": name, **options})
    return plugin(config, MODELS)


def request(tokens: Sequence[int], temperature: float = 0.0, slot: int = 0) -> RequestState:
    return request_for(tokens, reference_sampler(SamplingParams(temperature=temperature)), 0, slot=slot)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """The token paths to all nodes but the root."""
    return {tuple(tree.token_N[n] for n in tree.path_to(node)[1:]) for node in range(1, tree.size)}


def proposed(drafter: Drafter, tokens: Sequence[int], budget: Budget) -> set[tuple[int, ...]]:
    asked = request(tokens)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [budget])
    drafter.finish([asked.view])
    check_tree(tree)
    return paths(tree)


@pytest.mark.parametrize("name", WITHOUT_MODEL)
def test_conformance(name: str) -> None:
    choose = random.Random(1)
    repeated = [choose.randrange(VOCABULARY) for _ in range(6)]
    prompts = [[3], [1, 2], repeated * 3, [*repeated, 5, *repeated[:3], 7, *repeated[:3]]]
    check_drafter(
        lambda: drafter_of(**WITHOUT_MODEL[name]),
        VOCABULARY,
        prompts=prompts,
        draws=40,
        target=TableModel(VOCABULARY, 0),
    )


@pytest.mark.parametrize("name", ["recycling", "mixed", "lookahead", "merged"])
def test_a_drafter_that_wants_top_tokens_is_checked_with_a_target(name: str) -> None:
    with pytest.raises(ValueError, match="most probable tokens: give check_drafter a target"):
        check_drafter(lambda: drafter_of(**WITHOUT_MODEL[name]), VOCABULARY, draws=1)


@pytest.mark.parametrize("name", WITHOUT_MODEL)
def test_greedy_answers_are_those_of_plain_decoding(name: str) -> None:
    """Three at once, of a target that repeats itself: there is much to look up, and some of it is right."""

    def answers(options: dict[str, Any]) -> tuple[list[list[int]], int]:
        found: list[list[int]] = [[] for _ in range(3)]
        policy = FixedPolicy(FixedConfig(depth=4, max_nodes=9))
        scheduler = Scheduler(TableModel(5, 3), drafter_of(**options), MultiStep(None), policy, slots=2)
        accepted = [0]
        for number in range(3):
            state = request_for([number, 1, 2], reference_sampler(SamplingParams()), 0, max_new_tokens=120)
            state.id = number

            def count(event: dict[str, Any]) -> None:
                accepted[0] += event.get("accepted", 0)

            scheduler.add(state, count)
        while scheduler.busy:
            for progress in scheduler.step():
                assert progress.error is None
                found[progress.request] += progress.tokens
        return found, accepted[0]

    plain, _ = answers({"name": "none"})
    drafted, accepted = answers(WITHOUT_MODEL[name])
    assert drafted == plain and accepted > 20


# prompt lookup


def test_several_matches_are_merged_longest_run_and_latest_first() -> None:
    text = [1, 2, 3, 9, 2, 4, 1, 2, 3, 6, 1, 2, 5, 7, 8, 1, 2]
    budget = Budget(3, 30)
    assert proposed(drafter_of("prompt_lookup", matches=1), text, budget) == {(5,), (5, 7), (5, 7, 8)}
    two = {(5,), (5, 7), (5, 7, 8), (3,), (3, 6), (3, 6, 1)}
    assert proposed(drafter_of("prompt_lookup", matches=2), text, budget) == two
    # that of the 3 tokens' first occurrence begins alike; the last is found by one token alone
    three = two | {(3, 9), (3, 9, 2)}
    assert proposed(drafter_of("prompt_lookup", matches=3), text, budget) == three
    assert proposed(drafter_of("prompt_lookup", matches=9), text, budget) == three | {(4,), (4, 1), (4, 1, 2)}
    assert proposed(drafter_of("prompt_lookup", matches=9, min_ngram=2), text, budget) == three


def test_where_nodes_are_few_the_latest_match_has_them() -> None:
    text = [1, 2, 3, 9, 4, 1, 2, 5, 7, 8, 1, 2]
    assert proposed(drafter_of("prompt_lookup", matches=2), text, Budget(3, 4)) == {(5,), (5, 7), (5, 7, 8)}
    assert proposed(drafter_of("prompt_lookup", matches=2), text, Budget(2, 4)) == {(5,), (5, 7), (3,)}


def test_a_match_that_goes_on_like_another_is_no_second_path() -> None:
    text = [1, 2, 7, 8, 9, 1, 2, 3, 4, 6, 1, 2, 3, 4, 5, 1, 2]
    assert proposed(drafter_of("prompt_lookup", matches=2), text, Budget(2, 9)) == {(3,), (3, 4), (7,), (7, 8)}


def test_where_the_budget_is_a_chain_several_matches_are_todays_chain() -> None:
    text = [1, 2, 3, 9, 2, 4, 1, 2, 5, 6, 1, 2]
    for depth in (1, 2, 3):
        chain, tree = (proposed(drafter_of("prompt_lookup", matches=m), text, Budget(depth, depth + 1)) for m in (1, 8))
        assert chain == tree and len(chain) == depth


def test_only_several_matches_branch() -> None:
    assert not drafter_of("prompt_lookup").branches and drafter_of("prompt_lookup", matches=2).branches


# the suffix automaton


def test_the_suffix_drafter_counts() -> None:
    """After 1, 2: 3 three times and 4 once. The room for two nodes goes to the more frequent, and on below it."""
    text = [1, 2, 3, 5, 9, 1, 2, 3, 5, 8, 1, 2, 4, 6, 1, 2, 3, 5, 7, 1, 2]
    assert proposed(drafter_of("suffix"), text, Budget(2, 3)) == {(3,), (3, 5)}
    assert {(3,), (4,)} <= proposed(drafter_of("suffix", min_probability=0), text, Budget(1, 9))


def test_a_longer_run_is_believed_before_a_shorter_one() -> None:
    text = [1, 2, 3, 4, 9, 3, 5, 8, 3, 5, 7, 3, 5, 6, 1, 2, 3]
    assert proposed(drafter_of("suffix"), text, Budget(1, 2)) == {(4,)}
    assert (5,) in proposed(drafter_of("suffix", min_probability=0), text, Budget(1, 3))


def test_what_is_less_probable_is_not_drafted() -> None:
    text = [1, 2, 3, 5, 9, 1, 2, 4, 6, 1, 2]
    sizes = [
        len(proposed(drafter_of("suffix", min_probability=least), text, Budget(4, 40))) for least in (0, 0.1, 0.3, 0.9)
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[1] > sizes[2] > sizes[3] == 0


@pytest.mark.parametrize("right", [True, False])
def test_a_drafter_learns_which_guesses_are_right(right: bool) -> None:
    """20 follows every new token once, and is followed by what followed it before, or by something else each time."""
    drafter, asked = drafter_of("suffix"), request([1, 20, 2])
    drafter.start([asked.view])
    surest = []
    for n in range(60):
        for token in (30 + n, 20):
            asked.tokens.append(token)
            drafter.observe([asked.view], [[token]])
        surest.append(drafter._guessers[0].surest())
        asked.tokens.append(2 if right else 100 + n)
        drafter.observe([asked.view], [asked.tokens[-1:]])
    assert surest[-1] > 0.85 if right else surest[-1] < 0.5 * surest[1]


@pytest.mark.parametrize("keep", [False, True])
def test_answers_are_looked_up_again_where_they_are_kept(keep: bool) -> None:
    drafter, asked = drafter_of("suffix", keep_across_prompts=keep, min_probability=0.0), request([20, 21])
    drafter.start([asked.view])
    for token in (1, 2, 3, 4, 5, 6):
        asked.tokens.append(token)
        drafter.observe([asked.view], [[token]])
    drafter.finish([asked.view])
    found = proposed(drafter, [9, 8, 1, 2, 3], Budget(3))
    assert found == ({(4,), (4, 5), (4, 5, 6)} if keep else set())
    # neither the prompt nor what lies between two answers is guessed
    assert proposed(drafter, [9, 20], Budget(3)) == proposed(drafter, [7, 6], Budget(3)) == set()


def test_a_kept_answer_ends_where_it_ended() -> None:
    drafter = drafter_of("suffix", keep_across_prompts=True, min_probability=0.0)
    for answer in ([1, 2, 3], [4, 5, 6]):
        asked = request([20])
        drafter.start([asked.view])
        asked.tokens += answer
        drafter.observe([asked.view], [answer])
        drafter.finish([asked.view])
    assert proposed(drafter, [9, 2], Budget(5)) == {(3,)}


def test_no_more_answers_are_kept_than_asked_for() -> None:
    kept = KeptAnswers(100)
    for number in range(200):
        kept.add(range(number, number + 1 + number % 120))
        assert sum(automaton.size for automaton in kept.automata) <= 100
        assert len(kept.automata) <= 2
    assert kept.automata[-1].advance(kept.automata[-1].end(), 200).length >= 0


# token recycling


def top(*rows: Sequence[tuple[int, float]]) -> TopTokens:
    return TopTokens(
        torch.tensor([[token for token, _ in row] for row in rows]),
        torch.tensor([[probability for _, probability in row] for row in rows]),
    )


def test_the_table_has_what_the_target_thought_of_every_node() -> None:
    tree = TokenTree((1, 2, 3, 2), (-1, 0, 1, 0 + 0), (0, 1, 2, 1), (4, 3, 3, 4), ((), (), (), ()))
    table = RecyclingTable()
    table.record(tree, top([(2, 0.9)], [(3, 0.8)], [(4, 0.7)], [(5, 0.6)]), [0, 1, 2])
    assert {token: [t for t, _ in row] for token, row in table.rows.items()} == {1: [2], 2: [3], 3: [4]}
    table.record(tree, top([(6, 0.9)], [(3, 0.8)], [(4, 0.0)], [(5, 0.6)]), [0])
    # the last of two nodes with one token, where none was accepted; and nothing that the target rules out
    assert {token: [t for t, _ in row] for token, row in table.rows.items()} == {1: [6], 2: [5], 3: []}


def test_recycling_drafts_what_the_target_thought_likely_after_the_last_token() -> None:
    drafter, asked = drafter_of("token_recycling", successors=2, min_probability=0.0), request([1])
    drafter.start([asked.view])
    assert paths(drafter.propose([asked.view], [Budget(3, 9)])[0]) == set()
    tree = TokenTree.chain(1, [2, 3])
    asked.tokens += [2, 4, 1]
    drafter.observe_scores(
        [asked.view], [tree], [top([(2, 0.9), (7, 0.1)], [(4, 0.8), (3, 0.1)], [(9, 0.5), (8, 0.4)])]
    )
    drafter.observe([asked.view], [[2, 4, 1]])
    found = paths(drafter.propose([asked.view], [Budget(2, 9)])[0])
    assert found == {(2,), (7,), (2, 4), (2, 3)}
    # with room for two, the most probable path
    assert paths(drafter.propose([asked.view], [Budget(2, 3)])[0]) == {(2,), (2, 4)}


def test_learning_comes_before_the_target_s_answer_is_known() -> None:
    """Else every guess of the table would have been right."""
    drafter, asked = drafter_of("token_recycling", successors=1, min_probability=0.0), request([1])
    drafter.start([asked.view])
    for n in range(60):
        following = 2 + n % 2
        # the target always takes the token that it did not think of when it was last asked
        scored = top([(following, 0.9)])
        asked.tokens += [following]
        drafter.observe_scores([asked.view], [TokenTree.root_only(asked.tokens[-2])], [scored])
        drafter.observe([asked.view], [[following]])
        asked.tokens += [1]
        drafter.observe_scores([asked.view], [TokenTree.root_only(following)], [top([(1, 0.2)])])
        drafter.observe([asked.view], [[1]])
    assert drafter._guessers[0].sources[0].rates.rate((0, 5)) < 0.25
    assert drafter._guessers[0].sources[0].rates.rate((0, 2)) > 0.6


@pytest.mark.parametrize("keep", [False, True])
def test_the_table_is_kept_on_request(keep: bool) -> None:
    drafter, asked = drafter_of("token_recycling", keep_across_prompts=keep, min_probability=0.0), request([1])
    drafter.start([asked.view])
    asked.tokens += [2]
    drafter.observe_scores([asked.view], [TokenTree.root_only(1)], [top([(2, 0.9)])])
    drafter.finish([asked.view])
    assert proposed(drafter, [5, 1], Budget(2)) == ({(2,)} if keep else set())


def test_a_merged_member_gets_as_many_tokens_as_it_asked_for() -> None:
    drafter = drafter_of(**WITHOUT_MODEL["merged"])
    assert drafter.target_top_k == 8
    got: list[int] = []
    for member in drafter.members:
        member.observe_scores = lambda requests, trees, tops: got.append(tops[0].token_NK.shape[1])
    drafter.observe_scores([], [], [TopTokens(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8))])
    assert got == [3, 8]


def test_the_scheduler_gives_the_target_s_top_tokens_of_every_node_and_request() -> None:
    """After penalties; and before the drafter hears what was committed."""
    heard: list[tuple[Any, ...]] = []
    target = TableModel(6, 1)

    class Asking(type(drafter_of("prompt_lookup"))):  # type: ignore[misc]
        target_top_k = 2

        def observe_scores(self, requests: Any, trees: Any, tops: Any) -> None:
            heard.extend((r.id, len(r.tokens), t, top) for r, t, top in zip(requests, trees, tops, strict=True))

        def observe(self, requests: Any, committed: Any, path_hidden: Any = None) -> None:
            heard.extend((r.id, len(r.tokens)) for r in requests)

    plugin = drafter_of("prompt_lookup")
    scheduler = Scheduler(
        target, Asking(plugin.config, plugin.models), MultiStep(None), FixedPolicy(FixedConfig(3)), slots=2
    )
    params = SamplingParams(repetition_penalty=1.5)
    for number in range(2):
        state = request_for([1, 2, 3, 1, 2, 3, number], reference_sampler(params), 0, max_new_tokens=9)
        state.id = number
        scheduler.add(state)
    texts: dict[int, list[int]] = {number: [1, 2, 3, 1, 2, 3, number] for number in range(2)}
    while scheduler.busy:
        heard.clear()
        before = {number: list(text) for number, text in texts.items()}
        for progress in scheduler.step():
            texts[progress.request] += progress.tokens
        scored, committed = [e for e in heard if len(e) == 4], [e for e in heard if len(e) == 2]
        assert heard == [*scored, *committed] and [e[:2] for e in scored] == committed
        for number, length, tree, found in scored:
            assert length == len(texts[number])
            for node in range(tree.size):
                path = [tree.token_N[n] for n in tree.path_to(node)[1:]]
                logits_V = target.logits([*before[number], *path])[None].clone()
                expected_V = reference_sampler(params).penalise(logits_V, before[number], [path])[0].softmax(-1)
                torch.testing.assert_close(found.probability_NK[node], expected_V.topk(2).values)
                assert found.token_NK[node].tolist() == expected_V.topk(2).indices.tolist()


# estimates


def test_rates_are_discounted_counts_drawn_towards_the_prior() -> None:
    rates = AcceptanceRates(lambda kind: 0.25)
    assert rates.rate("a") == 0.25
    outcomes = [True, True, False, True]
    for right in outcomes:
        rates.observe("a", right)
    tried = math.fsum(FORGET**i for i in range(4))
    counted = math.fsum(FORGET ** (3 - i) * outcome for i, outcome in enumerate(outcomes))
    assert rates.rate("a") == pytest.approx((counted + PRIOR_WEIGHT * 0.25) / (tried + PRIOR_WEIGHT))
    assert rates.rate("b") == 0.25
    assert rates.log_odds("b") == pytest.approx(math.log(1 / 3))


def test_rates_begin_lower_where_answers_are_sampled() -> None:
    """And are learned apart."""
    rates = RatesByTemperature(lambda kind: 0.25, keep=True)
    greedy, warm = rates.of(0.0), rates.of(1.0)
    assert greedy.rate("a") == 0.25 > warm.rate("a") > 0.1
    warm.observe("a", True)
    assert greedy.rate("a") == 0.25 and rates.of(1.01) is warm and rates.of(7.0) is rates.of(2.0)
    assert RatesByTemperature(lambda kind: 0.25, keep=False).of(1.0).rate("a") == pytest.approx(0.25**1.35)


class Fixed(GuessSource):
    """Guesses the same tokens with the same probabilities everywhere."""

    def __init__(self, guesses: dict[int, float], other: float = 0.05) -> None:
        self._guesses = {token: probability for token, probability in guesses.items()}
        self._other = other
        self.rates = AcceptanceRates(lambda kind: kind)

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def record(self, tree: TokenTree, top: TopTokens, path: Sequence[int]) -> None:
        pass

    def end(self) -> None:
        return None

    def after(self, place: None, token: int) -> None:
        return None

    def guesses(self, place: None) -> dict[int, Any]:
        return self._guesses

    def other(self, place: None) -> float:
        return self._other


def test_the_tree_has_the_most_probable_paths() -> None:
    guesses = {1: 0.6, 2: 0.3, 3: 0.1}
    every = {
        path: math.prod(guesses[token] for token in path)
        for depth in range(1, 5)
        for path in itertools.product(guesses, repeat=depth)
    }
    for nodes in (2, 5, 9, 20):
        tree = Guesser([Fixed(guesses)]).grow(0, Budget(4, nodes), 0.0, "test").build().tree
        expected = sorted(every.values(), reverse=True)[: nodes - 1]
        assert sorted((every[path] for path in paths(tree)), reverse=True) == pytest.approx(expected)
    tree = Guesser([Fixed(guesses)]).grow(0, Budget(4, 4096), 0.1, "test").build().tree
    assert paths(tree) == {path for path, probability in every.items() if probability >= 0.1}


def test_two_sources_that_agree_are_surer_than_one() -> None:
    one, two = {1: 0.4, 2: 0.4}, {1: 0.5, 3: 0.5}
    guesser = Guesser([Fixed(one), Fixed(two)])
    assert guesser.surest() > Guesser([Fixed(one)]).surest()
    tree = guesser.grow(0, Budget(1, 2), 0.0, "test").build().tree
    assert paths(tree) == {(1,)}
    assert paths(guesser.grow(0, Budget(1, 9), 0.0, "test").build().tree) == {(1,), (2,), (3,)}


def test_a_token_is_credited_to_the_source_that_is_surest_of_it() -> None:
    one, two = Fixed({1: 0.4, 2: 0.4}), Fixed({1: 0.5, 3: 0.5})
    one.name, two.name = "one", "two"

    def credited(*sources: Fixed) -> dict[int, str]:
        tree = Guesser(sources).grow(0, Budget(1, 9), 0.0, "test").build().tree
        return {tree.token_N[draw.node]: draw.drafter for draw in tree.draws_N[0]}

    assert credited(one, two) == {1: "test/two", 2: "test/one", 3: "test/two"}
    assert set(credited(one).values()) == {"test"}


@pytest.mark.parametrize(
    ("probabilities", "costs", "kept"),
    [
        ([0.9, 0.8, 0.1], (), 3),
        ([0.9, 0.8, 0.1], (0, 0.3, 0.6, 0.9), 2),
        ([0.2, 0.2, 0.2], (0, 0.3, 0.6, 0.9), 0),
        # a second row costs much, further ones little: all or nothing
        ([0.4, 0.4, 0.4], (0, 1.0, 1.0, 1.0), 3),
        ([0.3, 0.3, 0.3], (0, 1.0, 1.0, 1.0), 0),
        ([0.5], (0, 0.5, 0.6), 0),
    ],
)
def test_as_many_nodes_as_pay(probabilities: list[float], costs: tuple[float, ...], kept: int) -> None:
    assert worthwhile(probabilities, costs) == kept


def test_a_tree_that_is_not_worth_its_price_is_the_root_alone() -> None:
    guesser = Guesser([Fixed({1: 0.6, 2: 0.3})])

    def size(price: float) -> int:
        costs = tuple(price * n for n in range(12))
        return guesser.grow(0, Budget(4, 12, costs), 0.0, "test").size

    assert [size(price) for price in (0.0, 0.2, 0.4, 0.7)] == [12, 5, 2, 1]
    assert least_price((0.0, 0.5, 0.6, 1.0)) == pytest.approx(0.1) and least_price(()) == 0


def test_the_first_nodes_of_a_tree_are_a_tree() -> None:
    tree = TreeBuilder(9)
    for parent, token in ((0, 1), (1, 2), (0, 3), (2, 4)):
        tree.add(parent, token, "chosen", drafter="test", probability=0.1 * token)
    kept = first_nodes(tree, 4).build().tree
    check_tree(kept)
    assert paths(kept) == {(1,), (1, 2), (3,)}
    assert {draw.drafter for draws in kept.draws_N for draw in draws} == {"test"}
    noted = {kept.token_N[draw.node]: draw.probability for draws in kept.draws_N for draw in draws}
    assert noted == {token: 0.1 * token for token in (1, 2, 3)}


# with a model


def test_no_draw_of_the_model_is_lost() -> None:
    """Its tree is in the mixed one whole, whatever it drew and whatever the guesses are."""
    model = {"name": "draft_model", "growth": "static", "widths": [3, 2], "children": "with_replacement"}
    text = [5, 6, 7, 8, 5, 6, 9, 5, 6]
    coincided = 0
    for seed in range(40):
        sampler = reference_sampler(SamplingParams(temperature=1.5))
        drafter = drafter_of("mixed", model=model, min_probability=0.0)
        asked = request_for(text, sampler, seed)
        drafter.start([asked.view])
        (tree,) = drafter.propose([asked.view], [Budget(2, 17)])
        check_tree(tree)
        own = tree.size - 1
        draws = [draw for draws in tree.draws_N for draw in draws if draw.drafter == "mixed/draft_model"]
        assert len([draw for draw in tree.draws_N[0] if draw.drafter == "mixed/draft_model"]) == 3
        assert all(draw.kind == "with_replacement" and draw.q_V is not None for draw in draws)
        guessed = ("mixed/suffix", "mixed/token_recycling")
        chosen = sum(draw.drafter in guessed for draws in tree.draws_N for draw in draws)
        coincided += len({draw.node for draw in draws}) + chosen - own
        assert tree.size <= 17
    assert coincided > 0


Options = dict[str, Any]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("prompt_lookup", {"matches": 0}, "drafter.matches: 0 must be 1"),
        ("suffix", {"min_probability": 1.0}, "drafter.min_probability: 1.0 must be"),
        ("suffix", {"max_kept_tokens": 1}, "drafter.max_kept_tokens: 1"),
        ("token_recycling", {"successors": 0}, "drafter.successors: 0"),
        ("mixed", {"model": {"width": 2}}, "drafter.model: it has no name"),
        ("mixed", {"model": {"name": "draft_modle"}}, "drafter.model: .*did you mean 'draft_model'"),
        ("mixed", {"model_below": 0.5}, "drafter.model_below: unknown option"),
    ],
)
def test_bad_options_are_named(name: str, options: Options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        drafter_of(name, **options)


def test_conformance_with_a_model() -> None:
    model = {"name": "draft_model", "width": 2}
    make: Callable[[], Drafter] = lambda: drafter_of("mixed", model=model, min_probability=0.01)  # noqa: E731
    vocabulary = make().models.target.executor.config.vocab_size
    prompts = [[5], [9, 3, 3, 60, 17, 9, 3]]
    check_drafter(make, vocabulary, prompts=prompts, draws=40, target=TableModel(vocabulary, 0))
