"""Under a constraint speculation has the distribution of constrained plain decoding: a mask, then softmax, everywhere.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Matcher, Request, SamplingParams, Verifier
from spec_sdk.engine.constrained_tree import constrained_tree
from spec_sdk.engine.forced_tokens import FORCED
from spec_sdk.testing import (
    SIGNIFICANCE,
    TableDrafter,
    TableModel,
    goodness_of_fit,
    joint_distribution,
    request_for,
    sample_tokens,
)
from spec_sdk.testing.enumeration import difference
from spec_sdk.testing.statistics import cell_of
from spec_sdk.testing.tables import DrawPlan
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_constraints.regex import RegexConfig, RegexConstraint
from spec_sdk_constraints.tokens import TokensConfig, TokensConstraint
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from tests.losslessness.plans import CHAINS, TREES
from tests.support.spelling_tokenizer import AB, END, VOCABULARY, A, B, SpellingTokenizer, spelt

PROMPT, TOKENS = (2, 0), 3
SAMPLED = SamplingParams(temperature=0.8)
TOKENIZER: Any = SpellingTokenizer()
PATTERNS = ("(ab|ba){1,3}", "a*b", "abab|bb|ba*")
PLANS = CHAINS | {name: TREES[name] for name in ("top-2 tree", "every token chosen", "distinct draws")}
Scale = Callable[[int, int], int]


def regex(pattern: str) -> Matcher:
    return RegexConstraint(RegexConfig(pattern)).compile(TOKENIZER, VOCABULARY)


class Blind(TableDrafter):
    """Drafts as if there were no constraint, and says so: what it drew must be weighed by what it drew it from."""

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        free = request_for(request.tokens, request.sampler, 0)
        state = object.__getattribute__(request, "_state")
        free.rng = state.rng
        return super().propose_one(free.view, budget)


class LateMask(Matcher):
    """Wrong: what may follow a drafted token is what might have stood in its place."""

    def __init__(self, inner: Matcher) -> None:
        self.inner = inner

    def begin(self) -> LateMask:
        return LateMask(self.inner.begin())

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.inner.begin().apply(logits_NV, [], [[*answer, *path[:-1]] for path in paths])


class Liar(Drafter):
    """Wrong: draws from the draft model's own distribution, and says it was the one under the mask."""

    name = "liar"

    def __init__(self, table: TableModel) -> None:
        self.table = table

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, sampler = TreeBuilder(request.pending_token), request.sampler
        logits_V = self.table.logits(request.tokens)
        said = sampler.distribution(request.process_logits(logits_V[None].clone(), [()])[0])
        token = sampler.draw_from(sampler.distribution(logits_V), request.rng)
        tree.add(0, token, "with_replacement", said, self.name)
        return tree.build().tree


def tables() -> list[TableModel]:
    return [TableModel(VOCABULARY, seed) for seed in (41, 42, 43)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("drafter", [TableDrafter, Blind])
def test_every_outcome_of_a_cycle(pattern: str, drafter: type[TableDrafter]) -> None:
    target, *drafts = tables()
    matcher, sampler = regex(pattern), ReferenceSampler(None, SAMPLED)
    constrained = joint_distribution(target, sampler, PROMPT, TOKENS, matcher)
    assert (constrained - joint_distribution(target, sampler, PROMPT, TOKENS)).abs().max() > 0.01
    for plan in PLANS.values():
        off = difference(target, drafter(drafts, plan), MultiStep(None), sampler, PROMPT, constraint=matcher).off
        assert off < 1e-6, plan


@pytest.mark.parametrize("verifier", [ChainRejection(None), BlockVerification(None), NaiveTree(None)])
def test_every_verifier(verifier: Verifier) -> None:
    target, *drafts = tables()
    chain: DrawPlan = CHAINS["top-1 chain" if isinstance(verifier, NaiveTree) else "two drawn tokens"]
    for drafter in (TableDrafter, Blind):
        for pattern in PATTERNS:
            sampler = ReferenceSampler(None, SAMPLED)
            off = difference(target, drafter(drafts, chain), verifier, sampler, PROMPT, constraint=regex(pattern)).off
            assert off < 1e-6, pattern


def test_a_fused_sampler() -> None:
    target, *drafts = tables()
    for plan in ("chain of all kinds", "top-2 tree"):
        off = difference(
            target,
            TableDrafter(drafts, PLANS[plan]),
            MultiStep(None),
            ExactSampler(None, SAMPLED),
            PROMPT,
            own_draws=True,
            constraint=regex(PATTERNS[0]),
        ).off
        assert off < 1e-6


def test_banned_forced_and_biased_tokens() -> None:
    target, *drafts = tables()
    config = TokensConfig(banned=[B], begin=[AB], bias={A: 0.7})
    matcher = TokensConstraint(config).compile(TOKENIZER, VOCABULARY)
    assert matcher is not None
    sampler = ReferenceSampler(None, SAMPLED)
    joint = joint_distribution(target, sampler, PROMPT, 2, matcher)
    assert joint.view(VOCABULARY, VOCABULARY).sum(1).tolist() == pytest.approx([0, 0, 1, 0])
    assert float(joint.view(VOCABULARY, VOCABULARY)[AB, B]) == 0
    for plan in PLANS.values():
        for drafter in (TableDrafter, Blind):
            off = difference(target, drafter(drafts, plan), MultiStep(None), sampler, PROMPT, constraint=matcher).off
            assert off < 1e-6


def test_wrong_ones_are_found() -> None:
    target, *drafts = tables()
    sampler, right = ReferenceSampler(None, SAMPLED), regex(PATTERNS[0])
    late = LateMask(right)
    expected = joint_distribution(target, sampler, PROMPT, TOKENS, right)
    counts = torch.zeros(VOCABULARY**TOKENS)
    drafter = TableDrafter(drafts, PLANS["top-2 tree"])
    for tokens in sample_tokens(target, drafter, MultiStep(None), sampler, PROMPT, TOKENS, 300, constraint=late):
        counts[cell_of(tokens, VOCABULARY)] += 1
    assert goodness_of_fit(counts, 300 * expected) < SIGNIFICANCE
    with pytest.raises(ValueError, match="in which that token has probability 0.0"):
        difference(target, Liar(drafts[0]), MultiStep(None), sampler, PROMPT, constraint=right)


@pytest.mark.parametrize("plan", ["chain of all kinds", "distinct draws", "every token chosen"])
@pytest.mark.parametrize("pattern", PATTERNS[:2])
def test_answers_through_the_scheduler(plan: str, pattern: str, scale: Scale) -> None:
    """Several cycles with one matcher, which keeps masks: χ² of the first tokens; all answers are of the language."""
    target, *drafts = tables()
    sampler, matcher, draws = ReferenceSampler(None, SAMPLED), regex(pattern), scale(400, 20_000)
    counts, length = torch.zeros(VOCABULARY**TOKENS), 5
    drafter = TableDrafter(drafts, PLANS[plan])
    for tokens in sample_tokens(target, drafter, MultiStep(None), sampler, PROMPT, length, draws, constraint=matcher):
        counts[cell_of(tokens[:TOKENS], VOCABULARY)] += 1
        if END in tokens:
            assert re.fullmatch(pattern, spelt(tokens[: tokens.index(END)]))
            assert set(tokens[tokens.index(END) :]) == {END}
    expected = draws * joint_distribution(target, sampler, PROMPT, TOKENS, matcher)
    assert goodness_of_fit(counts, expected) > SIGNIFICANCE / 6


def constrained_request(pattern: str) -> Request:
    state = request_for(PROMPT, ReferenceSampler(None, SAMPLED), 0)
    state.constraint = regex(pattern).begin()
    return state.view


def test_a_tree_is_pruned_and_what_is_forced_is_added() -> None:
    """After a, only b can follow, and then the end."""
    request = constrained_request("ab|bba")
    tree = TreeBuilder(0)
    wrong = tree.add(0, END, "chosen", drafter="x")
    tree.add(wrong, A, "chosen", drafter="x")
    first = tree.add(0, A, "chosen", drafter="x")
    tree.add(first, A, "chosen", drafter="x")
    drawn = tree.add(0, END, "with_replacement", torch.full((4,), 0.25), "x")
    assert drawn == wrong
    found = constrained_tree(tree.build().tree, request, Budget(4, 16))
    # the END that was chosen is gone, the one that was drawn is not
    assert found.tree.token_N == (0, A, B, END, END) and found.pruned == 2
    assert found.drafted.token_N == (0, A, END) and list(found.added) == [2, 3]
    # a path to the drawn one, and one through what was added
    assert found.drafted_path([0, 4]) == [0, 2] and found.drafted_path([0, 1, 2, 3]) == [0, 1]
    tree = TreeBuilder(0)
    first = tree.add(0, A, "chosen", drafter="x")
    tree.add(first, A, "chosen", drafter="x")
    wrong = tree.add(0, END, "with_replacement", torch.full((4,), 0.25), "x")
    tree.add(wrong, A, "chosen", drafter="x")
    found = constrained_tree(tree.build().tree, request, Budget(4, 16))
    paths = {tuple(found.tree.token_N[i] for i in found.tree.path_to(node)[1:]) for node in range(found.tree.size)}
    # the drawn token stays, for the rule to reject it; nothing stays behind it
    assert paths == {(), (END,), (A,), (A, B), (A, B, END)}
    assert found.pruned == 2

    tree = TreeBuilder(0)
    tree.add(0, A, "chosen", drafter="x")
    found = constrained_tree(tree.build().tree, request, Budget(4, 16))
    assert found.tree.token_N == (0, A, B, END)
    assert [draw.drafter for draws in found.tree.draws_N for draw in draws] == ["x", FORCED, FORCED]
    assert found.drafted == tree.build().tree and found.pruned == 0
    assert constrained_tree(tree.build().tree, request, Budget(2, 16)).tree.token_N == (0, A, B)
    assert constrained_tree(tree.build().tree, request, Budget(4, 3)).tree.token_N == (0, A, B)
    assert constrained_tree(tree.build().tree, request, Budget(4, 16), add=False).tree.token_N == (0, A)
