"""Where a constraint cannot be followed behind drafted tokens, answers are still those of constrained plain decoding:
those that go there end there, and all others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Hidden, Matcher, Request, SamplingParams, Verdict, Verifier
from spec_sdk.engine import verification
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import ConstraintLimit
from spec_sdk.testing import SIGNIFICANCE, TableDrafter, TableModel, goodness_of_fit, request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk.tree import TokenTree
from spec_sdk_constraints.regex import RegexConfig, RegexConstraint
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.plans import CHAINS, TREES
from tests.losslessness.test_constraints import Blind
from tests.support.spelling_tokenizer import END, VOCABULARY, SpellingTokenizer

PROMPT, MOST = (2, 0), 4
SAMPLED = SamplingParams(temperature=0.8)
PATTERN = "a{1,3}|a?bc|(ab)+b?"
"""No token spells c, so an answer that began with ``bc`` in mind has nowhere to go."""
Outcome = tuple[tuple[int, ...], str]
Scale = Callable[[int, int], int]


def matcher() -> Matcher:
    tokenizer: Any = SpellingTokenizer()
    found = RegexConstraint(RegexConfig(PATTERN)).compile(tokenizer, VOCABULARY)
    assert found is not None
    return found


def tables() -> list[TableModel]:
    return [TableModel(VOCABULARY, seed) for seed in (41, 42, 43)]


def expected_outcomes(target: TableModel) -> dict[Outcome, float]:
    """What plain decoding ends in, and how probably: a token at a time, each under the mask."""
    found: dict[Outcome, float] = {}
    sampler = ReferenceSampler(None, SAMPLED)

    def go_on(tokens: tuple[int, ...], probability: float) -> None:
        if len(tokens) == MOST or END in tokens:
            found[tokens, "stop" if END in tokens else "length"] = probability
            return
        state = request_for([*PROMPT, *tokens], sampler, 0)
        state.prompt_length, state.constraint = len(PROMPT), matcher().begin()
        try:
            logits_1V = state.view.process_logits(target.logits([*PROMPT, *tokens])[None].clone(), [()])
        except ConstraintLimit:
            found[tokens, "error"] = probability
            return
        for token, p in enumerate(sampler.probabilities(logits_1V)[0].tolist()):
            if p:
                go_on((*tokens, token), probability * p)

    go_on((), 1.0)
    return found


def counted(drafter: TableDrafter, verifier: Verifier, draws: int) -> Counter[Outcome]:
    target, rng, found = tables()[0], torch.Generator().manual_seed(5), Counter[Outcome]()
    scheduler, compiled = Scheduler(target, drafter, verifier, DeepestPolicy(None)), matcher()
    for number in range(draws):
        state = request_for(PROMPT, ReferenceSampler(None, SAMPLED), 0, MOST)
        state.stop_ids, state.rng, state.id = frozenset({END}), rng, number
        state.constraint = compiled.begin()
        scheduler.add(state)
        ended = ""
        while scheduler.busy:
            for progress in scheduler.step():
                assert progress.error is None or isinstance(progress.error, ConstraintLimit)
                ended = "error" if progress.error else progress.finish_reason or ended
        found[tuple(state.tokens[len(PROMPT) :]), ended] += 1
    return found


def fit(drafter: TableDrafter, verifier: Verifier, draws: int) -> float:
    expected = expected_outcomes(tables()[0])
    assert sum(p for (_, ended), p in expected.items() if ended == "error") > 0.1
    assert sum(expected.values()) == pytest.approx(1)
    observed = counted(drafter, verifier, draws)
    cells = sorted({*expected, *observed})
    return goodness_of_fit(
        torch.tensor([float(observed[cell]) for cell in cells]),
        torch.tensor([draws * expected.get(cell, 0.0) for cell in cells]),
    )


@pytest.mark.parametrize("kind", [TableDrafter, Blind])
@pytest.mark.parametrize("plan", ["two drawn tokens", "every token chosen", "distinct draws", "top-2 tree"])
def test_answers_end_where_plain_decoding_ends(plan: str, kind: type[TableDrafter], scale: Scale) -> None:
    drafter = kind(tables()[1:], {**CHAINS, **TREES}[plan])
    assert fit(drafter, MultiStep(None), scale(300, 20_000)) > SIGNIFICANCE / 9


def test_block_verification(scale: Scale) -> None:
    drafter = Blind(tables()[1:], CHAINS["two drawn tokens"])
    assert fit(drafter, BlockVerification(None), scale(300, 20_000)) > SIGNIFICANCE / 9


def test_going_on_behind_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_it(verdict: Verdict, unfollowed: object) -> Verdict:
        return verdict

    monkeypatch.setattr(verification, "followed", all_of_it)
    with pytest.raises(AssertionError):
        assert fit(Blind(tables()[1:], CHAINS["two drawn tokens"]), MultiStep(None), 300) > SIGNIFICANCE


class OfTheTargetsKind(TableDrafter):
    """Has a row of logits processed as the target's are: a limit is raised while it drafts."""

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        request.process_logits(torch.zeros(1, VOCABULARY), [()])
        return super().propose_one(request, budget)


class BetweenSteps(TableDrafter):
    """The same, when it hears of what was committed: in one call for all requests."""

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        for request in requests:
            request.process_logits(torch.zeros(1, VOCABULARY), [()])


@pytest.mark.parametrize("kind", [TableDrafter, OfTheTargetsKind, BetweenSteps])
def test_a_request_that_ends_there_ends_no_other(kind: type[TableDrafter]) -> None:
    target, *drafts = tables()
    drafter = kind(drafts, TREES["top-2 tree"])
    scheduler = Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None), slots=4)
    ended = dict[int, str]()
    for number in range(40):
        state = request_for(PROMPT, ReferenceSampler(None, SAMPLED), number, 12)
        state.id = number
        if number % 2:
            state.stop_ids, state.constraint = frozenset({END}), matcher().begin()
        scheduler.add(state)
        if number % 4 == 3:
            while scheduler.busy:
                for progress in scheduler.step():
                    if progress.finish_reason or progress.error:
                        ended[progress.request] = "error" if progress.error else str(progress.finish_reason)
    assert {ended[number] for number in range(0, 40, 2)} == {"length"}
    assert "error" in {ended[number] for number in range(1, 40, 2)}
