"""Does a drafter keep its promises?

Legend: V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spec_sdk.contracts import Budget, Drafter, SamplingParams
from spec_sdk.engine.target import Target
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing.check import Check, Skipped, run_checks
from spec_sdk.testing.defaults import MakeSampler, MultiStepRule, reference_sampler, request_for
from spec_sdk.testing.enumeration import difference
from spec_sdk.testing.independence import Evidence, distributions_of_draws
from spec_sdk.testing.service import Service
from spec_sdk.testing.statistics import SIGNIFICANCE, goodness_of_fit
from spec_sdk.testing.tables import TableModel
from spec_sdk.testing.undecided import NotEnumerable
from spec_sdk.testing.wording import words_of
from spec_sdk.tree import TokenTree

BUDGETS = (Budget(1), Budget(2, 4), Budget(5))
SAMPLINGS = {
    SamplingParams(): False,
    SamplingParams(temperature=1.0): False,
    SamplingParams(temperature=0.7, top_p=0.9): True,
}
"""Each, and whether a constraint forces tokens between the trees."""
DRAWS = 500
MOST_OFF = 1e-2
"""Of a probability, between a tree drafted alone and beside others: sums of float32 in another order, a thousand times
magnified where a sibling that had almost all of the probability is taken out of a distribution.
"""
NEXT_NUMBERS = 4
"""Random numbers after a tree that must not depend on it: the verifier takes them."""
SMALL_VOCABULARY, MOST_OUTCOMES = 8, 1500
"""Up to here every outcome of a cycle is tried."""
ROUNDING = 1e-5
"""Probabilities of a model in float32, whose passes have several shapes, differ by as much."""

MakeDrafter = Callable[[], Drafter]


def check_drafter(
    make_drafter: MakeDrafter,
    vocabulary: int,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    draws: int = DRAWS,
    target: Target | None = None,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless the drafters that ``make_drafter`` makes, a new one per call, behave.

    Over several cycles on ``prompts`` (random token ids below ``vocabulary`` by default), greedy, sampled, and as if
    a constraint forced tokens between the trees: trees are well-formed, begin with the pending token, stay within the
    budget and the vocabulary, branch only if the drafter says so, a fixed seed gives the same tree, and nothing in the
    request is changed. A drafter that
    serves two requests at once proposes for each of them what it proposes for it alone, whether they begin together
    or one after the other, and whichever requests had their slots before. Over ``draws`` seeds: drawn tokens follow
    the ``q_V`` that their draws declare, draw by draw, whatever was offered before them at their node, at its parent
    and in the tree before, and leave the random numbers that the verifier is to take as they are
    (:mod:`spec_sdk.testing.independence`); a tree of chosen tokens alone depends on no seed. In a vocabulary of at
    most 8 every outcome of a cycle with the rule ``multi_step`` is tried besides: what it emits has the target's
    distribution.

    ``target`` is needed for a drafter that wants the target's hidden states or most probable tokens, or drafts with the
    target: all are taken from it. Raises ValueError if a drafter with ``taps`` or ``target_top_k`` is given none.
    """
    run_checks(
        drafter_checks(
            make_drafter,
            vocabulary,
            prompts=prompts,
            draws=draws,
            target=target,
            make_sampler=make_sampler,
            seed=seed,
        )
    )


def drafter_checks(
    make_drafter: MakeDrafter,
    vocabulary: int,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    draws: int = DRAWS,
    target: Target | None = None,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> list[Check]:
    """The checks of :func:`check_drafter`, one by one."""
    subject = _Subject(make_drafter, vocabulary, prompts or _random_prompts(vocabulary, seed), target, seed)

    def alone(params: SamplingParams, forces: bool) -> Callable[[], None]:
        return lambda: subject.check_trees(make_sampler(params), forces)

    return [
        *(
            Check(
                f"trees within their budgets, the same again and beside other requests ({words_of(params)}"
                f"{', behind forced tokens' if forces else ''})",
                alone(params, forces),
            )
            for params, forces in SAMPLINGS.items()
        ),
        Check(
            "drawn tokens follow the distributions that they declare, independently of what came before",
            lambda: subject.check_draws(make_sampler(SamplingParams(temperature=1.0)), draws),
        ),
        Check(
            "every outcome of a cycle: the emitted tokens have the target's distribution",
            lambda: subject.check_outcomes(make_sampler(SamplingParams(temperature=1.0))),
        ),
    ]


def _random_prompts(vocabulary: int, seed: int) -> list[list[int]]:
    """Short and long ones; the last repeats itself, so that drafters that look for repetitions find some."""
    choose = random.Random(seed)
    prompts = [[choose.randrange(vocabulary) for _ in range(length)] for length in (1, 2, 9, 30)]
    return [*prompts, prompts[2] * 4]


class _Subject:
    """The drafters under test, and what they are given."""

    def __init__(
        self,
        make_drafter: MakeDrafter,
        vocabulary: int,
        prompts: Sequence[Sequence[int]],
        target: Target | None,
        seed: int,
    ) -> None:
        self.make_drafter, self.vocabulary, self.prompts = make_drafter, vocabulary, prompts
        self.target, self.seed = target, seed

    def service(self, forces: bool = False) -> Service:
        return Service(self.make_drafter(), self.vocabulary, self.target, forces)

    def check_trees(self, sampler: Any, forces: bool) -> None:
        prompts, seed = self.prompts, self.seed
        for number, budget in enumerate(BUDGETS):
            alone = []
            for i, prompt in enumerate(prompts):
                trees, again = (
                    self.service(forces).serve([request_for(prompt, sampler, seed + i)], budget)[0] for _ in range(2)
                )
                _check_equal(trees, again, f"prompt {i}, {budget}", "the same seed gave two different trees")
                alone.append(trees)
            service = self.service(forces)
            for first in range(0, len(prompts), 2):
                pair = (first, (first + 1) % len(prompts))
                turn = number + first // 2
                states = [request_for(prompts[i], sampler, seed + i, slot=(k + turn) % 2) for k, i in enumerate(pair)]
                for i, trees in zip(pair, service.serve(states, budget, apart=turn % 2), strict=True):
                    fault = "beside another request it got another tree than alone"
                    _check_equal(alone[i], trees, f"prompt {i}, {budget}", fault)

    def check_draws(self, sampler: Any, draws: int) -> str:
        service, evidence, trees = self.service(), Evidence(self.seed), []
        for number in range(draws):
            state = request_for(self.prompts[0], sampler, self.seed + number)
            service.start([state])
            (tree,) = service.propose([state], BUDGETS[-1])
            offered = evidence.add(tree, _numbers_after(state.rng))
            trees.append(tree)
            if any(item.numbers for item in offered):
                service.accept([state], [tree])
                evidence.follow(offered, evidence.offered(service.propose([state], BUDGETS[0])[0], 0))
            service.finish([state])
        if not any(draw.q_V is not None for tree in trees for draws in tree.draws_N for draw in draws):
            differing = next((i for i, tree in enumerate(trees) if _signature(tree) != _signature(trees[0])), None)
            assert differing is None, (
                f"all tokens are declared chosen, but seed {differing} gave another tree than seed 0: tokens that "
                "depend on a random number are drawn, and need their q_V"
            )
            return f"all are chosen, the same under {draws} seeds"
        _check_tokens(trees, self.vocabulary)
        return f"{draws} trees, {evidence.check()} comparisons"

    def check_outcomes(self, sampler: Any) -> str:
        target: Any = self.target or TableModel(self.vocabulary, self.seed + 977)
        if self.vocabulary > SMALL_VOCABULARY or not hasattr(target, "logits"):
            return Skipped(f"{self.vocabulary} tokens, or a target that cannot be asked about any text")
        tried = 0
        shortest, longest = min(self.prompts, key=len), max(self.prompts, key=len)
        for prompt, depth in ((shortest, 1), (longest, 1), (longest, 2)):
            policy = FixedPolicy(FixedConfig(depth, 4))
            try:
                off = difference(
                    target,
                    self.make_drafter(),
                    MultiStepRule(None),
                    sampler,
                    prompt,
                    policy,
                    limit=MOST_OUTCOMES,
                ).off
            except NotEnumerable as error:
                told = f"{tried} cycles; the next cannot be enumerated: {error}"
                return told if tried else Skipped(told)
            assert off < ROUNDING, (
                f"a prompt of {len(prompt)} tokens, depth {depth}: the joint distribution of the tokens that a "
                f"cycle emits is off the target's by {off:.1e} (enumerated)"
            )
            tried += 1
        return f"{tried} cycles"


def _numbers_after(rng: torch.Generator) -> list[float]:
    """The random numbers that come next, which stay to be taken."""
    ahead = torch.Generator()
    ahead.set_state(rng.get_state())
    numbers: list[float] = torch.rand(NEXT_NUMBERS, generator=ahead, dtype=torch.float64).tolist()
    return numbers


def _check_equal(trees: Sequence[TokenTree], others: Sequence[TokenTree], where: str, fault: str) -> None:
    for cycle, (tree, other) in enumerate(zip(trees, others, strict=True)):
        assert _signature(tree) == _signature(other), f"{where}, cycle {cycle}: {fault}"
        for node, (draws, other_draws) in enumerate(zip(tree.draws_N, other.draws_N, strict=True)):
            for draw, same in zip(draws, other_draws, strict=True):
                if draw.q_V is not None and same.q_V is not None:
                    off = float((draw.q_V.cpu() - same.q_V.cpu()).abs().max())
                    assert off < MOST_OFF, f"{where}, cycle {cycle}, node {node}: {fault}, by its q_V ({off:.1e})"


def _signature(tree: TokenTree) -> tuple[object, ...]:
    kinds = tuple(tuple((draw.node, draw.kind) for draw in draws) for draws in tree.draws_N)
    return tree.token_N, tree.parent_N, kinds


def _check_tokens(trees: Sequence[TokenTree], vocabulary: int) -> None:
    """Compare, for every depth and place in the draw order, what was drawn with what was declared.

    The declared distributions may differ from tree to tree: each draw is fair given what came before it, so their sum
    is what is expected, and χ² is if anything too small.
    """
    observed: dict[tuple[int, int], torch.Tensor] = {}
    expected: dict[tuple[int, int], torch.Tensor] = {}
    for tree in trees:
        for node in range(tree.size):
            for place, q_V in distributions_of_draws(tree, node):
                key, token = (tree.depth_N[node], place), tree.token_N[tree.draws_N[node][place].node]
                if key not in observed:
                    observed[key], expected[key] = (torch.zeros(vocabulary, dtype=torch.float64) for _ in range(2))
                observed[key][token] += 1
                expected[key][: q_V.shape[0]] += q_V
    for (depth, place), counts in observed.items():
        probability = goodness_of_fit(counts, expected[depth, place])
        assert probability > SIGNIFICANCE / 2 / len(observed), (
            f"draw {place} at depth {depth}: {int(counts.sum())} drawn tokens do not follow the declared q_V "
            f"(χ² probability {probability:.1e})"
        )
