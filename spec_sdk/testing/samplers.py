"""Does a sampler do what its parameters say, and are the rows right that it gives to rules of acceptance?

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from spec_sdk.contracts import GUARANTEES, Sampler, SamplingParams
from spec_sdk.contracts.sampler_faults import as_choices, as_probabilities
from spec_sdk.testing.check import Check, Skipped, run_checks
from spec_sdk.testing.defaults import MakeSampler, MultiStepRule
from spec_sdk.testing.enumeration import ENUMERATED, difference
from spec_sdk.testing.statistics import SIGNIFICANCE, goodness_of_fit
from spec_sdk.testing.tables import DrawPlan, PlannedDraw, TableDrafter, TableModel, in_words
from spec_sdk.testing.undecided import NotEnumerable
from spec_sdk.testing.wording import words_of
from spec_sdk.tree import TreeBuilder

PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=2.0, top_k=7),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=0.9, min_p=0.15),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.85, min_p=0.02),
)
TOLERANCE, DRAWS = 1e-5, 4000
OUTCOME_PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=2),
    SamplingParams(temperature=1.4, top_p=0.8, min_p=0.1),
    SamplingParams(temperature=0.9, repetition_penalty=1.5),
)
PLANS: tuple[DrawPlan, ...] = (
    [[PlannedDraw("with_replacement")]] * 2,
    [[PlannedDraw("with_replacement"), PlannedDraw("with_replacement", 1)], [PlannedDraw("chosen")]],
    [[PlannedDraw("without_replacement"), PlannedDraw("without_replacement"), PlannedDraw("chosen", 1)]],
)


def check_sampler(make_sampler: MakeSampler, *, draws: int = DRAWS, seed: int = 0) -> None:
    """Raise AssertionError unless the samplers that ``make_sampler`` makes do what their parameters say.

    Their ``guarantee`` is a known one. Probabilities equal those of a slow reference (temperature, top-k, top-p, min-p,
    in that order) on random logits; greedy puts everything on the first of the largest logits, and ``choices`` names
    it; ``draw`` follows the distribution it is given and ``draw_from`` that of draft logits (χ² over ``draws`` each).
    The repetition penalty reaches every token of the prefix and of the drafted path once. Where a sampler has
    ``own_probabilities``, they are distributions, each row by itself, and "the target's distribution" is theirs. The
    rows of a scored tree are the probabilities of its nodes and draft distributions, and what is remembered of a drawn
    token is its probability. With them the rule ``multi_step`` gives the target's distribution, every outcome of a
    cycle tried (a relaxed sampler may judge draws by other numbers: :meth:`~spec_sdk.ops.Rows.left`). All random
    numbers come from the generator that is passed.
    """
    run_checks(sampler_checks(make_sampler, draws=draws, seed=seed))


def sampler_checks(make_sampler: MakeSampler, *, draws: int = DRAWS, seed: int = 0) -> list[Check]:
    """The checks of :func:`check_sampler`, one by one."""
    rng = torch.Generator().manual_seed(seed)
    logits_NV = 2.5 * torch.randn((6, 50), generator=rng)

    def randomness() -> str:
        sampler = make_sampler(SamplingParams(temperature=1.0))
        few_NV = logits_NV[:1, :12] / 2
        p_V = as_probabilities(sampler.name, sampler.probabilities(few_NV), few_NV)[0]
        _check_randomness(sampler, p_V, logits_NV[1, :12], draws, torch.Generator().manual_seed(seed))
        return f"{draws} tokens each"

    return [
        Check("guarantee is declared", lambda: _check_guarantee(make_sampler(SamplingParams()))),
        Check(
            "greedy: the first of the largest logits", lambda: _check_greedy(make_sampler(SamplingParams()), logits_NV)
        ),
        Check("probabilities: temperature, top-k, top-p, min-p", lambda: _check_probabilities(make_sampler, logits_NV)),
        Check("repetition penalty on prefix and drafted tokens", lambda: _check_penalty(make_sampler, logits_NV)),
        Check(
            "rows of a scored tree", lambda: _check_rows(make_sampler, logits_NV, torch.Generator().manual_seed(seed))
        ),
        Check("draws follow their distribution, from the generator given", randomness),
        Check(
            "every outcome of a cycle by the rule multi_step: the emitted tokens have the target's distribution",
            lambda: _check_outcomes(make_sampler),
        ),
    ]


def _check_guarantee(sampler: Sampler) -> str:
    known = sampler.guarantee in GUARANTEES
    assert known, f"guarantee {sampler.guarantee!r} is none of {', '.join(GUARANTEES)}"
    return sampler.guarantee


def _check_probabilities(make_sampler: MakeSampler, logits_NV: torch.Tensor) -> str | None:
    for params in PARAMS:
        sampler = make_sampler(params)
        p_NV = as_probabilities(sampler.name, sampler.probabilities(logits_NV), logits_NV)
        if sampler.own_probabilities:
            _check_own_probabilities(sampler, p_NV, logits_NV, words_of(params))
            continue
        assert p_NV.dtype == torch.float32, f"{words_of(params)}: probabilities are {p_NV.dtype}, they must be float32"
        for row, (p_V, logits_V) in enumerate(zip(p_NV.tolist(), logits_NV.tolist(), strict=True)):
            expected_V = _probabilities_by_hand(logits_V, params)
            worst = max(abs(a - b) for a, b in zip(p_V, expected_V, strict=True))
            assert worst < TOLERANCE, (
                f"{words_of(params)}: row {row} of the probabilities is off by {worst:.1e}; a sampler whose "
                "distribution is meant to be another one sets own_probabilities = True"
            )
    own = make_sampler(PARAMS[0]).own_probabilities
    return "they are its own: distributions, each row by itself" if own else None


def _check_own_probabilities(sampler: Sampler, p_NV: torch.Tensor, logits_NV: torch.Tensor, where: str) -> None:
    """A distribution in every row, and the same one without the rows beside it."""
    assert p_NV.dtype == torch.float32, f"{where}: probabilities are {p_NV.dtype}, they must be float32"
    assert p_NV.shape == logits_NV.shape, f"{where}: probabilities of shape {tuple(p_NV.shape)}"
    for row, p_V in enumerate(p_NV):
        total, least = float(p_V.sum()), float(p_V.min())
        assert abs(total - 1) < TOLERANCE and least >= 0, (
            f"{where}: row {row} of the probabilities is no distribution: it sums to {total:.6f}, its least is {least}"
        )
        alone_V = sampler.probabilities(logits_NV[row : row + 1])[0]
        off = float((alone_V - p_V).abs().max())
        assert off < TOLERANCE, f"{where}: row {row} of the probabilities is off by {off:.1e} beside other rows"


def _check_penalty(make_sampler: MakeSampler, logits_NV: torch.Tensor) -> None:
    """Row by row: what the prefix and the row's own path have is divided by it, or multiplied where negative, once."""
    prefix, paths = [4, 4, 9, 2], [[], [7], [7, 4, 19], [7, 7], [30], [31, 9]]
    for penalty in (1.0, 1.6, 0.7):
        sampler = make_sampler(SamplingParams(temperature=0.8, repetition_penalty=penalty))
        given_NV = sampler.penalise(logits_NV.clone(), prefix, paths)
        for row, path in enumerate(paths):
            seen = {*prefix, *path}
            expected = [
                x if token not in seen else x * penalty if x < 0 else x / penalty
                for token, x in enumerate(logits_NV[row].tolist())
            ]
            off = (given_NV[row].float().cpu() - torch.tensor(expected)).abs()
            token = int(off.argmax())
            assert float(off[token]) < TOLERANCE, (
                f"repetition_penalty={penalty}: after the prefix {prefix} and the drafted tokens {path} the logit of "
                f"token {token} is {float(given_NV[row, token]):.3f}, expected {expected[token]:.3f}"
            )


def _check_outcomes(make_sampler: MakeSampler) -> str:
    tried = 0
    for params in OUTCOME_PARAMS:
        sampler = make_sampler(params)
        if sampler.guarantee == "relaxed":
            return Skipped("it guarantees no distribution")
        for plan in PLANS:
            target, *tables = (TableModel(3, 120 + i, spread=2.5) for i in range(3))
            drafter, rule = TableDrafter(tables, plan), MultiStepRule(None)
            try:
                found = difference(target, drafter, rule, sampler, (1, 2), own_draws=True)
            except (NotEnumerable, TypeError):
                # its draws are no inversions: then they are checked by χ² alone
                found = difference(target, drafter, rule, sampler, (1, 2))
            assert found.off < ENUMERATED, (
                f"{words_of(params)}, draws {in_words(plan)}: with its rows and draws the rule multi_step "
                f"gives another joint distribution than plain sampling: {found}"
            )
            tried += 1
    return f"{tried} cycles"


def _check_greedy(sampler: Sampler, logits_NV: torch.Tensor) -> None:
    assert sampler.greedy, "temperature 0 must be greedy"
    logits_NV = logits_NV.clone()
    logits_NV[0, [3, 17, 40]] = logits_NV.max() + 1
    largest_N = [row.index(max(row)) for row in logits_NV.tolist()]
    expected_NV = torch.zeros_like(logits_NV)
    for row, token in enumerate(largest_N):
        expected_NV[row, token] = 1
    p_NV = as_probabilities(sampler.name, sampler.probabilities(logits_NV), logits_NV)
    assert torch.equal(p_NV, expected_NV), (
        "greedy probabilities must be 1 at the first of the largest logits and 0 elsewhere"
    )
    choices = as_choices(sampler.name, sampler.choices(logits_NV), logits_NV).tolist()
    assert choices == largest_N, f"the greedy choices are {choices}, the largest logits are at {largest_N}"


def _check_rows(make_sampler: MakeSampler, logits_NV: torch.Tensor, rng: torch.Generator) -> None:
    """On a chain of a drawn, a chosen and another drawn token: each row asked for, and again after another one."""
    for params in PARAMS:
        sampler = make_sampler(params)
        distributions = [sampler.distribution(logits_NV[4]), sampler.distribution(logits_NV[5])]
        builder = TreeBuilder(0)
        node = builder.add(0, sampler.draw_from(distributions[0], rng), "with_replacement", distributions[0])
        node = builder.add(node, int(logits_NV[1].argmax()), "chosen")
        builder.add(node, sampler.draw_from(distributions[1], rng), "with_replacement", distributions[1])
        tree = builder.build().tree
        expected_NV = sampler.probabilities(logits_NV)
        rows = sampler.rows(tree, logits_NV[:4].clone())
        for node in (0, 1, 2, 3, 0):
            _compare(f"{words_of(params)}: rows.target({node})", rows.target(node), expected_NV[node])
        for node, distribution_V in ((0, expected_NV[4]), (2, expected_NV[5]), (0, expected_NV[4])):
            (draw,) = tree.draws_N[node]
            _compare(f"{words_of(params)}: rows.draft of node {draw.node}", rows.draft(draw, node), distribution_V)
            known, q = rows.known(draw), float(distribution_V[tree.token_N[draw.node]])
            assert known is None or abs(known - q) < TOLERANCE, (
                f"{words_of(params)}: rows.known of node {draw.node} is {known}, its token was drawn with {q}"
            )
        target_V = rows.target(0)
        beside_V = rows.spare(target_V)
        assert beside_V.shape == target_V.shape and beside_V.data_ptr() != target_V.data_ptr(), (
            "rows.spare must be a row of the same length in other memory"
        )


def _compare(what: str, given_V: torch.Tensor, expected_V: torch.Tensor) -> None:
    assert given_V.shape == expected_V.shape, f"{what} has shape {tuple(given_V.shape)}, not {tuple(expected_V.shape)}"
    worst = float((given_V.cpu() - expected_V.cpu()).abs().max())
    assert worst < TOLERANCE, f"{what} is off by {worst:.1e}"


def _check_randomness(
    sampler: Sampler, p_V: torch.Tensor, logits_V: torch.Tensor, draws: int, rng: torch.Generator
) -> None:
    p_V = p_V.clone()
    p_V[[0, 5, p_V.shape[0] - 1]] = 0
    p_V /= p_V.sum()
    distribution = sampler.distribution(logits_V)
    q_V = sampler.probabilities(logits_V[None])[0]
    ways: dict[str, tuple[Callable[[torch.Generator], int], torch.Tensor]] = {
        "draw": (lambda generator: sampler.draw(p_V, generator), p_V),
        "draw_from": (lambda generator: sampler.draw_from(distribution, generator), q_V),
    }
    for what, (draw, expected_V) in ways.items():
        observed = torch.bincount(torch.tensor([draw(rng) for _ in range(draws)]), minlength=expected_V.shape[0])
        probability = goodness_of_fit(observed, expected_V * draws)
        assert probability > SIGNIFICANCE / len(ways), f"{what} does not follow its distribution (χ² {probability:.1e})"
        _check_source(what, draw)


def _check_source(what: str, act: Callable[[torch.Generator], int]) -> None:
    """The same generator state must give the same outcome, whatever the global generator does."""
    runs = []
    for noise in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            generator = torch.Generator().manual_seed(11)
            runs.append([act(generator) for _ in range(60)])
    assert runs[0] == runs[1], f"{what} takes random numbers from elsewhere than the generator it is given"


def _probabilities_by_hand(logits: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p, min-p, from their definitions, for one row without ties."""
    top = max(logits)
    p = _normalised([math.exp((x - top) / params.temperature) for x in logits])
    order = sorted(range(len(p)), key=lambda token: -p[token])
    if params.top_k:
        kept = set(order[: params.top_k])
        p = _normalised([x if i in kept else 0.0 for i, x in enumerate(p)])
    if params.top_p < 1:
        kept, mass = set(), 0.0
        for token in order:
            if mass >= params.top_p:
                break
            kept.add(token)
            mass += p[token]
        p = _normalised([x if i in kept else 0.0 for i, x in enumerate(p)])
    floor = params.min_p * max(p)
    return _normalised([x if x >= floor else 0.0 for x in p])


def _normalised(mass: list[float]) -> list[float]:
    total = sum(mass)
    return [x / total for x in mass]
