"""Does a verifier keep the guarantee that it declares?

Legend: V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from spec_sdk.contracts import GUARANTEES, Budget, Guarantee, Request, Sampler, SamplingParams, Verdict, Verifier
from spec_sdk.engine.faults import verdict_fault
from spec_sdk.errors import PluginFault, UserError, in_a_line
from spec_sdk.testing.check import Check, Skipped, run_checks
from spec_sdk.testing.defaults import MakeSampler, reference_sampler, request_for
from spec_sdk.testing.enumeration import ENUMERATED, difference
from spec_sdk.testing.plans import CHAINS, DEEP, TREES, enumerable
from spec_sdk.testing.statistics import SIGNIFICANCE, cell_of, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.tables import DrawPlan, TableDrafter, TableModel, in_words
from spec_sdk.testing.undecided import OTHERWISE, NotEnumerable
from spec_sdk.testing.wording import words_of
from spec_sdk.tree import TokenTree

VOCABULARY, TOKENS, PROMPT = 3, 3, (1, 2)
SPREAD = 2.5
"""Standard deviation of the tables' logits: drafts far from the target make wrong rules show."""
GREEDY_TABLES, GREEDY_TOKENS = 20, 12

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=2),
    SamplingParams(temperature=1.4, top_p=0.8, min_p=0.1),
)


TABLE_SEEDS = (120, 581, 628)
"""Of the tables on which every outcome is tried: on each some rules that look right are far off."""
MOST_OUTCOMES = 6000
ANSWERS = (150, 5_000)
"""For χ² where every outcome of a cycle was tried, and where it could not be: then a rule that accepts a tenth too
often is found.
"""


def check_verifier(
    verifier: Verifier,
    *,
    plans: Sequence[DrawPlan] | None = None,
    draws: int | None = None,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless ``verifier`` keeps what ``guarantee_under`` declares, for every kind of tree.

    It is asked as the engine asks, by ``verify``. Its verdicts are paths from the root of the tree and tokens of the
    vocabulary, whatever it guarantees. Exact or in distribution under greedy sampling: the tokens are the target's most
    probable ones, which are all that its distribution has there. Exact or in distribution otherwise: every outcome of a
    cycle is tried on small tables, and the joint distribution of what it emits is the target's to 1e-6; and so is, by
    χ² over ``draws`` answers per kind of tree, that of three successive tokens of answers, on random tables that depend
    on the whole prefix. A verifier whose random numbers cannot be followed (:class:`spec_sdk.testing.NotEnumerable`) is
    judged by χ² alone, over more answers where ``draws`` is None.
    Verdicts on several requests at once are those that each gets alone, also where one of them has unusable logits.
    Sampling parameters that the verifier refuses with a UserError are left out; refusing all is a failure.

    ``plans`` are the kinds of trees: by default chains, and trees too unless the verifier is ``chains_only``.
    """
    run_checks(verifier_checks(verifier, plans=plans, draws=draws, make_sampler=make_sampler, seed=seed))


def verifier_checks(
    verifier: Verifier,
    *,
    plans: Sequence[DrawPlan] | None = None,
    draws: int | None = None,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> list[Check]:
    """The checks of :func:`check_verifier`, one by one."""
    subject = _Subject(verifier, plans or (CHAINS if verifier.chains_only else TREES), make_sampler, seed)
    return [
        Check("serves some sampling parameters, and refuses others in one line", subject.check_served),
        Check("verdicts are paths, the same alone and beside other requests", subject.check_together),
        Check("greedy: the target's most probable tokens", subject.check_greedy),
        Check("every outcome of a cycle: the emitted tokens have the target's distribution", subject.check_outcomes),
        Check("answers have the target's distribution (χ²)", lambda: subject.check_answers(draws)),
    ]


class _Subject:
    """The verifier under test, and what it is given."""

    def __init__(self, verifier: Verifier, plans: Sequence[DrawPlan], make_sampler: MakeSampler, seed: int) -> None:
        self.verifier, self.plans, self.make_sampler, self.seed = verifier, plans, make_sampler, seed
        self.enumerated = False

    @functools.cached_property
    def served(self) -> list[SamplingParams]:
        """The sampling parameters that it does not refuse."""
        found = []
        for params in SAMPLINGS:
            try:
                self.verifier.check(params)
            except UserError as error:
                assert "\n" not in str(error), f"{words_of(params)} are refused in several lines: {str(error)!r}"
                continue
            found.append(params)
        return found

    def check_served(self) -> str:
        assert self.served, f"verifier {self.verifier.name!r} refuses every sampling parameter tried"
        for params in self.served:
            guarantee = self.verifier.guarantee_under(params)
            assert guarantee in GUARANTEES, (
                f"{words_of(params)}: guarantee {guarantee!r} is none of {', '.join(GUARANTEES)}"
            )
            assert guarantee != "exact" or self.make_sampler(params).greedy, (
                f"{words_of(params)}: its guarantee is 'exact', which is of the model's own greedy tokens; a sampled "
                "rule guarantees 'distribution'"
            )
        return f"{len(self.served)} of {len(SAMPLINGS)}"

    def check_together(self) -> None:
        for params in self.served:
            _check_together(self.verifier, self.plans, self.make_sampler(params), self.seed, f"{words_of(params)}")

    def check_greedy(self) -> str | None:
        for params in self.served:
            sampler = self.make_sampler(params)
            if not sampler.greedy:
                continue
            lossless = self.verifier.guarantee_under(params) != "relaxed"
            for number, plan in enumerate(self.plans):
                _check_greedy(self.verifier, lossless, plan, sampler, self.seed, f"{words_of(params)}, plan {number}")
            return None if lossless else Skipped("it guarantees no distribution")
        return Skipped("it refuses temperature 0")

    def lossless(self) -> list[SamplingParams]:
        """The sampling parameters under which it guarantees the target's distribution."""
        drawn = [params for params in self.served if not self.make_sampler(params).greedy]
        return [params for params in drawn if self.verifier.guarantee_under(params) != "relaxed"]

    def check_outcomes(self) -> str:
        tried, self.enumerated = 0, False
        for params in self.lossless():
            sampler = self.make_sampler(params)
            seeds = TABLE_SEEDS if params == SAMPLINGS[1] else TABLE_SEEDS[:1]
            cases = [(plan, VOCABULARY, PROMPT, seed) for plan in enumerable(self.plans) for seed in seeds]
            if not tried:
                cases.append((DEEP, 2, (1, 0), seeds[0]))
            for plan, vocabulary, prompt, seed in cases:
                target, *tables = (TableModel(vocabulary, seed + i, spread=SPREAD) for i in range(3))
                try:
                    found = difference(
                        target, TableDrafter(tables, plan), self.verifier, sampler, prompt, limit=MOST_OUTCOMES
                    )
                except (NotEnumerable, TypeError, RuntimeError) as error:
                    # what computes with a number may raise whatever it raises for an argument of another type
                    told = str(error) if isinstance(error, NotEnumerable) else OTHERWISE
                    told = f"{tried} cycles; the next cannot be enumerated ({told}): χ² alone judges it"
                    return told if tried else Skipped(told)
                assert found.off < ENUMERATED, (
                    f"{words_of(params)}, draws {in_words(plan)}: the joint distribution of the tokens "
                    f"that a cycle emits is {found}"
                )
                tried += 1
        self.enumerated = tried > 0
        return f"{tried} cycles" if tried else Skipped("it guarantees no distribution")

    def check_answers(self, draws: int | None) -> str:
        counts = self._counts(draws)
        for params, count in counts.items():
            guarantee, sampler = self.verifier.guarantee_under(params), self.make_sampler(params)
            for number, plan in enumerate(self.plans):
                probability = _check_distribution(
                    self.verifier, guarantee, plan, sampler, self.seed + TABLE_SEEDS[0], count
                )
                assert probability > SIGNIFICANCE / (len(self.plans) * len(counts)), (
                    f"{words_of(params)}, plan {number}: the joint distribution of {TOKENS} successive tokens is not "
                    f"the target's (χ² probability {probability:.1e} over {count} answers)"
                )
        if not self.lossless():
            return Skipped(f"it {'guarantees no distribution' if counts else 'refuses to sample'}")
        return f"{max(counts.values())} answers of each kind of tree"

    def _counts(self, draws: int | None) -> dict[SamplingParams, int]:
        """How many answers under each sampling parameters; few where all outcomes were tried."""
        drawn = [params for params in self.served if not self.make_sampler(params).greedy]
        if draws is not None:
            return dict.fromkeys(drawn, draws)
        most = ANSWERS[0] if self.enumerated or not self.lossless() else ANSWERS[1]
        return {params: most if params == drawn[0] else most // 8 for params in drawn}


def _check_together(verifier: Verifier, plans: Sequence[DrawPlan], sampler: Sampler, seed: int, where: str) -> None:
    """One request per kind of tree; then once more with one whose logits are NaN, which the others must not notice."""
    target, *tables = (TableModel(VOCABULARY, seed + i, spread=SPREAD) for i in range(3))

    def cases(spoilt: int) -> list[tuple[TokenTree, torch.Tensor, Request]]:
        found = []
        for number, plan in enumerate(plans):
            request = request_for(PROMPT, sampler, seed + number, slot=number).view
            (tree,) = TableDrafter(tables, plan).propose([request], [Budget(len(plan))])
            target.open(number, PROMPT[:-1], keep=False)
            target.prefill(number, PROMPT[:-1])
            logits_NV = target.score([number], [tree])[0].logits_NV
            found.append((tree, logits_NV * (float("nan") if number == spoilt else 1.0), request))
        return found

    alone = []
    for number, (tree, logits_NV, request) in enumerate(cases(-1)):
        verdicts = verifier.verify([tree], [logits_NV], [request])
        assert len(verdicts) == 1, f"{where}: {len(verdicts)} verdicts for 1 request"
        _check_verdict(verifier, verdicts[0], tree, f"{where}, plan {number}")
        alone.append(_outcome(verdicts[0]))
    for spoilt in (-1, len(plans) // 2):
        trees, logits, requests = zip(*cases(spoilt), strict=True)
        try:
            verdicts = verifier.verify(trees, logits, requests)
        except Exception as error:
            raise AssertionError(
                f"{where}: beside request {spoilt}, whose logits are unusable, verify raised {in_a_line(error)}; an "
                "exception in the place of its verdict ends that request alone"
            ) from error
        assert len(verdicts) == len(plans), f"{where}: {len(verdicts)} verdicts for {len(plans)} requests"
        for number, (verdict, expected) in enumerate(zip(verdicts, alone, strict=True)):
            assert number == spoilt or _outcome(verdict) == expected, (
                f"{where}, plan {number}: the verdict among others is {_outcome(verdict)}, alone it is {expected}"
                + (f" (request {spoilt} has unusable logits)" if spoilt >= 0 else "")
            )


def _check_verdict(verifier: Verifier, verdict: Verdict | Exception, tree: TokenTree, where: str) -> None:
    # that names the verifier itself
    assert not isinstance(verdict, PluginFault), f"{where}: {verdict}"
    fault = in_a_line(verdict) if isinstance(verdict, Exception) else verdict_fault(verdict, tree, VOCABULARY)
    assert fault is None, f"{where}: verifier {verifier.name!r}: {fault}"


def _outcome(verdict: Verdict | Exception) -> tuple[list[int], int] | str:
    return (verdict.path, verdict.next_token) if isinstance(verdict, Verdict) else repr(verdict)


def _check_greedy(verifier: Verifier, lossless: bool, plan: DrawPlan, sampler: Sampler, seed: int, where: str) -> None:
    """On many tables, since greedy answers to one prompt are all the same."""
    for table in range(seed, seed + 3 * GREEDY_TABLES, 3):
        answer = next(_answers(verifier, plan, sampler, table, GREEDY_TOKENS, 1))
        expected: list[int] = []
        target = TableModel(VOCABULARY, table, spread=SPREAD)
        while len(expected) < GREEDY_TOKENS:
            expected.append(int(target.logits([*PROMPT, *expected]).argmax()))
        assert answer == expected or not lossless, (
            f"{where}: the tokens {answer} are not the target's most probable ones, {expected}"
        )


def _check_distribution(
    verifier: Verifier, guarantee: Guarantee, plan: DrawPlan, sampler: Sampler, seed: int, draws: int
) -> float:
    """Returns the χ² probability of the answers."""
    counts = torch.zeros(VOCABULARY**TOKENS, dtype=torch.float64)
    for tokens in _answers(verifier, plan, sampler, seed, TOKENS, draws):
        counts[cell_of(tokens, VOCABULARY)] += 1
    if guarantee == "relaxed":
        return 1.0
    return goodness_of_fit(
        counts, draws * joint_distribution(TableModel(VOCABULARY, seed, spread=SPREAD), sampler, PROMPT, TOKENS)
    )


def _answers(
    verifier: Verifier, plan: DrawPlan, sampler: Sampler, seed: int, length: int, draws: int
) -> Iterator[list[int]]:
    target, *tables = (TableModel(VOCABULARY, seed + i, spread=SPREAD) for i in range(3))
    try:
        yield from sample_tokens(target, TableDrafter(tables, plan), verifier, sampler, PROMPT, length, draws, seed)
    except PluginFault as error:
        raise AssertionError(str(error)) from error
