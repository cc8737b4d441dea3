"""Forced tokens are taken without a word of the target, and nothing else of an answer is another for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, Matcher, Policy, Request, RequestState, SamplingParams, Verifier
from spec_sdk.engine.forced_tokens import FORCED, WIDEST, behind, forced_run
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.turn import Progress
from spec_sdk.errors import ConstraintLimit
from spec_sdk.policy.forced_token_costs import ForcedTokens
from spec_sdk.testing import (
    SIGNIFICANCE,
    TableDrafter,
    TableModel,
    check_tree,
    goodness_of_fit,
    joint_distribution,
    request_for,
    sample_tokens,
)
from spec_sdk.testing.enumeration import cycle_distribution, difference
from spec_sdk.testing.statistics import DeepestPolicy, cell_of
from spec_sdk.testing.tables import PlannedDraw
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_constraints.regex import RegexConfig, RegexConstraint
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from tests.losslessness.plans import CHAINS, TREES
from tests.support.spelling_tokenizer import AB, END, VOCABULARY, A, B, SpellingTokenizer, spelt

PROMPT = (2, 0)
SAMPLED = SamplingParams(temperature=0.8)
GREEDY = SamplingParams(temperature=0.0)
TOKENIZER: Any = SpellingTokenizer()
BEGINS_FORCED = "abab(a|bb)b*"
"""Two tokens that must be, then a choice."""
IN_THE_MIDDLE = "(bb|a)(abab|babb)(a|b)"
VERIFIERS = [MultiStep(None), ChainRejection(None), BlockVerification(None), NaiveTree(None)]
Event = dict[str, Any]
Scale = Callable[[int, int], int]


def regex(pattern: str) -> Matcher:
    return RegexConstraint(RegexConfig(pattern)).compile(TOKENIZER, VOCABULARY)


def tables() -> list[TableModel]:
    return [TableModel(VOCABULARY, seed) for seed in (41, 42, 43)]


def answer(
    pattern: str, drafter: Drafter, target: TableModel | None = None, forced: bool = True, **about: Any
) -> tuple[list[int], list[Event], RequestState]:
    """A greedy answer's tokens, its cycles, and what was kept of it."""
    target = target or tables()[0]
    state = request_for(PROMPT, ReferenceSampler(None, GREEDY), 0, about.pop("max_new_tokens", 1 << 20))
    state.constraint, state.stop_ids = regex(pattern).begin(), about.pop("stop_ids", frozenset({END}))
    for name, value in about.items():
        setattr(state, name, value)
    events: list[Event] = []
    scheduler = Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None), takes_forced=forced)
    tokens = [token for new in scheduler.run(state, events.append) for token in new]
    return tokens, [event for event in events if event["event"] == "cycle"], state


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_every_outcome_behind_forced_tokens(verifier: Verifier) -> None:
    """They are the first of every outcome, and what follows has the target's distribution behind them."""
    target, *drafts = tables()
    plans = [CHAINS["top-1 chain"]] if isinstance(verifier, NaiveTree) else [CHAINS["two drawn tokens"]]
    if isinstance(verifier, MultiStep):
        plans += [TREES["distinct draws"], CHAINS["chain of all kinds"]]
    sampler, matcher = ReferenceSampler(None, SAMPLED), regex(BEGINS_FORCED)
    for plan in plans:
        drafter = TableDrafter(drafts, plan)
        outcomes = cycle_distribution(target, drafter, verifier, sampler, PROMPT, constraint=matcher)
        assert all(tokens[:2] == (AB, AB) for tokens in outcomes) and len(outcomes) > 2
        assert difference(target, drafter, verifier, sampler, PROMPT, constraint=matcher).off < 1e-6


@pytest.mark.parametrize("plan", ["chain of all kinds", "distinct draws"])
def test_answers_with_forced_tokens_in_the_middle(plan: str, scale: Scale) -> None:
    """χ² of whole answers, over several cycles; all of them are of the language."""
    target, *drafts = tables()
    sampler, matcher, draws, length = ReferenceSampler(None, SAMPLED), regex(IN_THE_MIDDLE), scale(400, 20_000), 4
    counts = torch.zeros(VOCABULARY**length)
    drafter = TableDrafter(drafts, (CHAINS | TREES)[plan])
    for tokens in sample_tokens(target, drafter, MultiStep(None), sampler, PROMPT, 7, draws, constraint=matcher):
        counts[cell_of(tokens[:length], VOCABULARY)] += 1
        if END in tokens:
            assert re.fullmatch(IN_THE_MIDDLE, spelt(tokens[: tokens.index(END)]))
    expected = draws * joint_distribution(target, sampler, PROMPT, length, matcher)
    assert goodness_of_fit(counts, expected) > SIGNIFICANCE / 2


class Nothing(Drafter):
    name = "nothing"

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)


def nothing() -> Drafter:
    return Nothing(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", [BEGINS_FORCED, IN_THE_MIDDLE, "(ab){5}", "a*b", "bbbb(a|ba)"])
def test_greedy_answers_are_those_without(pattern: str) -> None:
    target, *drafts = tables()
    expected, plain, _ = answer(pattern, nothing(), forced=False)
    assert len(plain) == len(expected) and all(not cycle["constraint"]["taken"] for cycle in plain)
    for drafter in (nothing(), TableDrafter(drafts, CHAINS["top-1 chain"]), TableDrafter(drafts, TREES["top-2 tree"])):
        tokens, cycles, _ = answer(pattern, drafter)
        assert tokens == expected
        taken = sum(cycle["constraint"]["taken"] for cycle in cycles)
        if isinstance(drafter, Nothing):
            assert len(cycles) == len(expected) - taken
            assert taken > 0 or pattern == "a*b"


def test_an_answer_ends_with_forced_tokens_at_once() -> None:
    """The end needs no pass; where the answer would be nothing else, one pass is made for its last token."""
    expected, _, _ = answer("(a|b)bbab", nothing(), forced=False)
    tokens, (only,), state = answer("(a|b)bbab", nothing())
    assert tokens == only["tokens"] == expected and state.tokens[2:] == tokens
    assert only["tree_nodes"] == 1 and only["constraint"]["taken"] == len(expected) - 1
    tokens, (only,), _ = answer("abab", nothing())
    assert tokens == [AB, AB, END] and only["tree_nodes"] == 3 and only["constraint"]["taken"] == 2


@pytest.mark.parametrize("most", range(1, 6))
def test_no_more_than_was_asked_for(most: int) -> None:
    expected, _, _ = answer(BEGINS_FORCED, nothing(), forced=False, max_new_tokens=most)
    tokens, cycles, state = answer(BEGINS_FORCED, nothing(), max_new_tokens=most)
    assert tokens == expected and len(state.tokens) == 2 + most
    small = TableModel(VOCABULARY, 41, context=2 + most)
    tokens, _, state = answer("(ab)*bbbb", nothing(), small)
    assert len(state.tokens) <= 2 + most and tokens == state.tokens[2:]


def test_log_probabilities_and_trees_are_told_of_forced_tokens_too() -> None:
    target, *drafts = tables()
    for pattern in (BEGINS_FORCED, IN_THE_MIDDLE, "abab"):
        expected, plain, _ = answer(pattern, nothing(), forced=False, logprobs=2)
        tokens, cycles, _ = answer(pattern, TableDrafter(drafts, CHAINS["top-1 chain"]), logprobs=2, trace=True)
        assert tokens == expected
        told, wanted = ([tell for cycle in of for tell in cycle["logprobs"]] for of in (cycles, plain))
        assert [tell[0] for tell in told] == tokens
        for tell, want in zip(told, wanted, strict=True):
            assert tell[1] == pytest.approx(want[1]) and [t for t, _ in tell[2]] == [t for t, _ in want[2]]
        for cycle in cycles:
            trace, taken = cycle["trace"], cycle["constraint"]["taken"]
            assert trace["drafter_N"][1 : 1 + taken] == [[FORCED]] * taken
            kept = [trace["token_N"][node] for node in trace["path"][1:]]
            assert cycle["tokens"] == kept + ([] if trace["next_token"] is None else [trace["next_token"]])


class Tapping(TableDrafter):
    """Holds the states that it is given against the table's, and is never asked behind states that it lacks."""

    taps = (0,)

    def __init__(self, drafts: Sequence[TableModel], table: TableModel) -> None:
        super().__init__(drafts, CHAINS["top-1 chain"])
        self.table = table
        self.states: list[torch.Tensor] = []

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        self.states = [*prompt_hidden[0][0]]

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        assert len(self.states) == len(request.tokens) - 1
        for place, state_V in enumerate(self.states):
            assert torch.equal(state_V, self.table.logits(request.tokens[: place + 1]))
        return super().propose_one(request, budget)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        self.states += [*path_hidden[0][0]] if path_hidden else []


LONG = "(a|b)" + "ab" * (WIDEST + 8) + "(a|bb)(a|b)(a|b)"


@pytest.mark.parametrize("pattern", [BEGINS_FORCED, IN_THE_MIDDLE, LONG, LONG[5:]])
def test_states_of_forced_tokens_come_with_the_next(pattern: str) -> None:
    target, *drafts = tables()
    expected, _, _ = answer(pattern, nothing(), forced=False)
    drafter = Tapping(drafts, target)
    tokens, cycles, _ = answer(pattern, drafter, target)
    assert tokens == expected and sum(cycle["drafted"] > 0 for cycle in cycles) > 0
    assert all(not cycle["budget"] for cycle in cycles if ForcedTokens.of(cycle).taken)


def test_a_long_run_is_fed_without_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are no tree's; those that ask for log-probabilities get them all the same."""
    target, sizes = tables()[0], list[int]()
    score = target.score

    def noting(slots: Sequence[int], trees: Sequence[TokenTree], taps: Sequence[int] = ()) -> Any:
        sizes.extend(tree.size for tree in trees)
        return score(slots, trees, taps)

    monkeypatch.setattr(target, "score", noting)
    expected, plain, _ = answer(LONG, nothing(), forced=False, logprobs=0)
    sizes.clear()
    tokens, cycles, _ = answer(LONG, nothing(), target)
    assert tokens == expected and max(sizes) == 1
    assert max(cycle["tree_nodes"] for cycle in cycles) > WIDEST + 1
    tokens, cycles, _ = answer(LONG, nothing(), target, logprobs=0)
    told, wanted = ([tell[1] for cycle in of for tell in cycle["logprobs"]] for of in (cycles, plain))
    assert tokens == expected and max(sizes) > WIDEST and told == pytest.approx(wanted)


class Cautious(TableDrafter):
    """Drafts in the target's own cache, or as good as that."""

    drafts_ahead = False

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        assert request.target.length(request.slot) == len(request.tokens) - 1
        return super().propose_one(request, budget)


def test_who_drafts_in_the_targets_cache_is_not_asked_ahead_of_it() -> None:
    target, *drafts = tables()
    for pattern in (BEGINS_FORCED, IN_THE_MIDDLE):
        expected, _, _ = answer(pattern, nothing(), forced=False)
        tokens, cycles, _ = answer(pattern, Cautious(drafts, CHAINS["top-1 chain"]))
        assert tokens == expected and any(cycle["drafted"] for cycle in cycles)


def test_what_was_forced_is_no_merit_of_the_drafter() -> None:
    """Acceptance counts the drafter's own nodes; rows count all."""
    target, *drafts = tables()
    for pattern in (BEGINS_FORCED, IN_THE_MIDDLE, "(ab|ba|bb){4}abab(a|b)"):
        _, cycles, _ = answer(pattern, TableDrafter(drafts, CHAINS["one drawn token"][:1]))
        for cycle in cycles:
            told, own = cycle["constraint"], sum(cycle["level_sizes"])
            assert cycle["drafted"] == len(cycle["level_sizes"]) <= 1
            assert len(cycle["accepted_ranks"]) == cycle["accepted"] <= own
            forced = ForcedTokens.of(cycle)
            assert cycle["tree_nodes"] == 1 + own + told["added"] + forced.taken
            # what drafting and the pass itself gave; without the latter where the answer ended before
            assert len(cycle["tokens"]) - forced.emitted - cycle["accepted"] in (0, 1)


def test_a_tree_behind_others() -> None:
    tree = TreeBuilder(7)
    left = tree.add(0, 1, "chosen", drafter="x", probability=0.5)
    tree.add(0, 2, "with_replacement", torch.full((9,), 1 / 9), "y")
    tree.add(left, 3, "chosen", drafter="x")
    whole = behind([4, 5], tree.build().tree)
    check_tree(whole)
    assert whole.token_N == (4, 5, 7, 1, 3, 2) and whole.parent_N == (-1, 0, 1, 2, 3, 2)
    assert whole.depth_N == (0, 1, 2, 3, 4, 3) and whole.end_N == (6, 6, 6, 5, 5, 6)
    assert [[(d.node, d.drafter, d.probability) for d in draws] for draws in whole.draws_N] == [
        [(1, FORCED, None)],
        [(2, FORCED, None)],
        [(3, "x", 0.5), (5, "y", None)],
        [(4, "x", None)],
        [],
        [],
    ]
    assert behind([], whole) is whole


def test_a_run_goes_as_far_as_there_is_no_choice() -> None:
    def run(pattern: str, room: int, stop_ids: frozenset[int] = frozenset({END})) -> tuple[list[int], bool]:
        state = request_for(PROMPT, ReferenceSampler(None, GREEDY), 0)
        state.constraint, state.stop_ids = regex(pattern).begin(), stop_ids
        return forced_run(state.view, room)

    assert run(BEGINS_FORCED, 9) == ([AB, AB], False)
    assert run("abab", 9) == ([AB, AB, END], True)
    assert run("abab", 9, frozenset()) == ([AB, AB, END], False)
    assert run("abab", 9, frozenset({AB})) == ([AB], True)
    assert run("abab", 2) == ([AB, AB], True)
    assert run("a|b", 9) == ([], False)
    assert run("bba", 9) == ([B, B, A, END], True)


class GivesUp(Matcher):
    """Forces nothing, allows everything, and cannot be followed beyond six tokens."""

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for path in paths:
            self._follow(answer, path)

    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        self._follow(answer, path)
        return []

    def _follow(self, answer: Sequence[int], path: Sequence[int]) -> None:
        if len(answer) + len(path) >= 6:
            raise ConstraintLimit("constraint: it goes no further")


@pytest.mark.parametrize("forced", [True, False])
def test_a_limit_takes_back_nothing_that_was_accepted(forced: bool) -> None:
    target, *drafts = tables()
    state = request_for(PROMPT, ReferenceSampler(None, GREEDY), 0, 40)
    state.constraint = GivesUp()
    drafter = TableDrafter([target], [[PlannedDraw("chosen")]] * 2)
    scheduler = Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None), takes_forced=forced)
    told: list[Progress] = []
    scheduler.add(state)
    while scheduler.busy:
        told += scheduler.step()
    assert isinstance(told[-1].error, ConstraintLimit)
    assert sum(len(progress.tokens) for progress in told) == len(state.tokens) - len(PROMPT) >= 6


class OnlyPlain(Policy):
    """Never grants a draft."""

    name = "only_plain"

    def budget(self, request: Request) -> Budget:
        return Budget(0)


def test_they_are_taken_where_nothing_is_drafted() -> None:
    target, *drafts = tables()
    sampler, matcher = ReferenceSampler(None, SAMPLED), regex(BEGINS_FORCED)
    drafter = TableDrafter(drafts, CHAINS["top-1 chain"])
    off = difference(target, drafter, MultiStep(None), sampler, PROMPT, OnlyPlain(None), constraint=matcher).off
    outcomes = cycle_distribution(
        target, drafter, MultiStep(None), sampler, PROMPT, OnlyPlain(None), constraint=matcher
    )
    assert off < 1e-6 and {len(tokens) for tokens in outcomes} == {3}
