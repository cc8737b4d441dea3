"""Does a verifier keep the guarantee that it declares?

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from spec_sdk.contracts import Budget, Guarantee, Request, Sampler, SamplingParams, Verdict, Verifier
from spec_sdk.errors import UserError
from spec_sdk.testing.defaults import MakeSampler, reference_sampler, request_for
from spec_sdk.testing.statistics import SIGNIFICANCE, cell_of, goodness_of_fit, joint_law, sample_tokens
from spec_sdk.testing.tables import DrawPlan, PlannedDraw, TableDrafter, TableModel
from spec_sdk.tree import TokenTree

VOCABULARY, TOKENS, PROMPT = 4, 3, (1, 3, 0)
SPREAD = 2.5
"""Standard deviation of the tables' logits: drafts far from the target make wrong rules show."""
GREEDY_TABLES, GREEDY_TOKENS = 20, 12

# the short one brings its bonus token within the tokens that are looked at
CHAINS: tuple[DrawPlan, ...] = (
    [[PlannedDraw("with_replacement")]],
    [[PlannedDraw("with_replacement")]] * 3,
    [[PlannedDraw("chosen")]] * 3,
    [[PlannedDraw("without_replacement")], [PlannedDraw("chosen")], [PlannedDraw("with_replacement")]],
)
"""Trees without branches."""
TREES: tuple[DrawPlan, ...] = (
    *CHAINS,
    [[PlannedDraw("chosen"), PlannedDraw("chosen")]] * 2,
    [
        [PlannedDraw("with_replacement"), PlannedDraw("with_replacement"), PlannedDraw("with_replacement")],
        [PlannedDraw("with_replacement")],
    ],
    [[PlannedDraw("without_replacement"), PlannedDraw("without_replacement")]] * 2,
    [
        [
            PlannedDraw("with_replacement"),
            PlannedDraw("chosen", 1),
            PlannedDraw("without_replacement", 1),
            PlannedDraw("without_replacement", 1),
        ]
    ]
    * 2,
)
"""Chains, and trees of all kinds of draws: top-k, repeated samples, distinct samples, two drafters merged."""
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=3),
    SamplingParams(temperature=1.4, top_p=0.8, min_p=0.1),
)


def check_verifier(
    verifier: Verifier,
    *,
    plans: Sequence[DrawPlan] = TREES,
    draws: int = 800,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless ``verifier`` keeps what ``guarantee_under`` declares, for every kind of tree.

    Its verdicts are paths from the root of the tree, whatever it guarantees. Exact under greedy sampling: the tokens
    are the target's most probable ones. Exact or in distribution otherwise: the joint law of three successive tokens,
    on random tables that depend on the whole prefix, is the target's (χ², ``draws`` answers per kind of tree). Verdicts
    on several requests at once are those that each gets alone, also where one of them has unusable logits. Sampling
    parameters that the verifier refuses with a UserError are left out; refusing all is a failure.

    ``plans`` are the kinds of trees; a verifier that takes chains only is checked with ``plans=CHAINS``.
    """
    served = 0
    for params in SAMPLINGS:
        try:
            verifier.check(params)
        except UserError:
            continue
        served += 1
        guarantee = verifier.guarantee_under(params)
        _check_together(verifier, plans, make_sampler(params), seed, f"{params}")
        for number, plan in enumerate(plans):
            where, sampler = f"{params}, plan {number}", make_sampler(params)
            if sampler.greedy:
                _check_greedy(verifier, guarantee == "exact", plan, sampler, seed, where)
                continue
            probability = _check_law(verifier, guarantee, plan, sampler, seed, draws)
            assert probability > SIGNIFICANCE / (len(plans) * len(SAMPLINGS)), (
                f"{where}: the joint law of {TOKENS} successive tokens is not the target's (χ² probability "
                f"{probability:.1e} over {draws} answers)"
            )
    assert served, f"verifier {verifier.name!r} refuses every sampling parameter tried"


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

    alone = [_outcome(verifier.verify([tree], [logits_NV], [request])[0]) for tree, logits_NV, request in cases(-1)]
    for spoilt in (-1, len(plans) // 2):
        trees, logits, requests = zip(*cases(spoilt), strict=True)
        verdicts = verifier.verify(trees, logits, requests)
        assert len(verdicts) == len(plans), f"{where}: {len(verdicts)} verdicts for {len(plans)} requests"
        for number, (verdict, expected) in enumerate(zip(verdicts, alone, strict=True)):
            assert number == spoilt or _outcome(verdict) == expected, (
                f"{where}, plan {number}: the verdict among others is {_outcome(verdict)}, alone it is {expected}"
                + (f" (request {spoilt} has unusable logits)" if spoilt >= 0 else "")
            )


def _outcome(verdict: Verdict | Exception) -> tuple[list[int], int] | str:
    return (verdict.path, verdict.next_token) if isinstance(verdict, Verdict) else repr(verdict)


def _check_greedy(verifier: Verifier, exact: bool, plan: DrawPlan, sampler: Sampler, seed: int, where: str) -> None:
    """On many tables, since greedy answers to one prompt are all the same."""
    for table in range(seed, seed + 3 * GREEDY_TABLES, 3):
        answer = next(_answers(verifier, plan, sampler, table, GREEDY_TOKENS, 1))
        expected: list[int] = []
        target = TableModel(VOCABULARY, table, spread=SPREAD)
        while len(expected) < GREEDY_TOKENS:
            expected.append(int(target.logits([*PROMPT, *expected]).argmax()))
        assert answer == expected or not exact, (
            f"{where}: the tokens {answer} are not the target's most probable ones, {expected}"
        )


def _check_law(
    verifier: Verifier, guarantee: Guarantee, plan: DrawPlan, sampler: Sampler, seed: int, draws: int
) -> float:
    """Returns the χ² probability of the answers."""
    counts = torch.zeros(VOCABULARY**TOKENS, dtype=torch.float64)
    for tokens in _answers(verifier, plan, sampler, seed, TOKENS, draws):
        counts[cell_of(tokens, VOCABULARY)] += 1
    if guarantee == "relaxed":
        return 1.0
    return goodness_of_fit(
        counts, draws * joint_law(TableModel(VOCABULARY, seed, spread=SPREAD), sampler, PROMPT, TOKENS)
    )


def _answers(
    verifier: Verifier, plan: DrawPlan, sampler: Sampler, seed: int, length: int, draws: int
) -> Iterator[list[int]]:
    target, *tables = (TableModel(VOCABULARY, seed + i, spread=SPREAD) for i in range(3))
    checked = _Checked(verifier)
    return sample_tokens(target, TableDrafter(tables, plan), checked, sampler, PROMPT, length, draws, seed)


class _Checked(Verifier):
    """Another verifier, whose verdicts are looked at before they are acted on."""

    name = "checked"
    guarantee = "relaxed"

    def __init__(self, inner: Verifier) -> None:
        super().__init__(inner.config)
        self.inner = inner

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = self.inner.verify_one(tree, logits_NV, request)
        path = verdict.path
        rooted = bool(path) and path[0] == 0 and all(0 <= node < tree.size for node in path)
        assert rooted and path == tree.path_to(path[-1]), (
            f"verifier {self.inner.name!r}: the accepted nodes {path} are not a path from the root of the tree"
        )
        assert 0 <= verdict.next_token < logits_NV.shape[-1], (
            f"verifier {self.inner.name!r}: next token {verdict.next_token} lies outside the vocabulary"
        )
        return verdict
