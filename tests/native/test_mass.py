"""What tokens are drawn from, made by the kernels: the reference sampler's probabilities (legend: V vocabulary)."""

from __future__ import annotations

from math import isnan

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.ops import residual
from spec_sdk.ops.inversion import first_beyond
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk_backends.native.mass import Mass, takes
from spec_sdk_backends.native.structures import Shaping
from spec_sdk_samplers.reference import ReferenceSampler
from tests.support.threads import threads

SIZES = (1, 2, 255, 256, 257, 5000, 49_152)
SAMPLINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1e-40),
    SamplingParams(temperature=7.5),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.2, top_k=40),
    SamplingParams(temperature=1.0, top_k=3000),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=1e-9),
    SamplingParams(temperature=2.0, top_p=0.999),
    SamplingParams(temperature=1.0, min_p=0.02),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01),
)


def row(size: int, spread: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (spread * torch.randn(size, generator=torch.Generator().manual_seed(size))).to(dtype)


def mass_of(logits: torch.Tensor | SomeLogits, params: SamplingParams, vocabulary: int) -> Mass:
    mass = Mass(vocabulary)
    assert not isnan(mass.of_logits(logits, Shaping.of(params, params.temperature)))
    return mass


def probabilities(mass: Mass) -> torch.Tensor:
    return torch.tensor([mass.probability(token) for token in range(mass.vocabulary)], dtype=torch.float64)


def expected(logits_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    return ReferenceSampler(None, params).probabilities(logits_V[None])[0].double()


def check(found_V: torch.Tensor, expected_V: torch.Tensor) -> None:
    """The same tokens are kept, but for one whose probability rounding adds to the border of top-p, or does not."""
    (other_K,) = ((found_V > 1e-30) != (expected_V > 1e-30)).nonzero(as_tuple=True)
    assert len(other_K) <= 1 and all(max(float(found_V[i]), float(expected_V[i])) < 1e-5 for i in other_K)
    found_V[other_K] = expected_V[other_K]
    torch.testing.assert_close(found_V, expected_V, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_probabilities_are_the_reference_samplers(params: SamplingParams, dtype: torch.dtype) -> None:
    for size in SIZES:
        for spread in (0.3, 3.0, 12.0):
            logits_V = row(size, spread, dtype)
            check(probabilities(mass_of(logits_V, params, size)), expected(logits_V, params))


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_ties_and_tokens_that_are_ruled_out(params: SamplingParams) -> None:
    """Of equals top-k keeps all, top-p the first ones; a tie lies on the border of either."""
    for logits_V in (
        torch.zeros(709),
        torch.tensor([1.0, 3.0, 3.0, 2.0] * 101),
        torch.tensor([-torch.inf, 3.0, -torch.inf, 3.0, 2.0] * 61),
        torch.full((5000,), -torch.inf).index_fill_(0, torch.tensor([4998, 17]), 0.5),
    ):
        check(probabilities(mass_of(logits_V, params, len(logits_V))), expected(logits_V, params))


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [600, 900, 1000], ids=str)
def test_logits_of_some_tokens(params: SamplingParams, vocabulary: int) -> None:
    """In any order; tokens that the mass has no place for have no share of it, whatever their logits are."""
    token_R = torch.randperm(1000, generator=torch.Generator().manual_seed(3))[:300]
    logits_R = row(300, 3.0)
    logits_R[token_R >= vocabulary] = torch.nan
    full_V = SomeLogits(logits_R, token_R, 1000).full_V[:vocabulary]
    check(probabilities(mass_of(SomeLogits(logits_R, token_R, 1000), params, vocabulary)), expected(full_V, params))
    few = SomeLogits(row(300, 3.0), None, vocabulary)
    check(probabilities(mass_of(few, params, vocabulary)), expected(few.full_V, params))


def test_more_logits_than_tokens_of_the_mass() -> None:
    logits_V = row(5000, 3.0)
    logits_V[4000:] = torch.nan
    for params in SAMPLINGS:
        check(probabilities(mass_of(logits_V, params, 4000)), expected(logits_V[:4000], params))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 63, 255, 700, 4095, 4096, 4999])
def test_unusable_logits(bad: float, place: int) -> None:
    logits_V, shaping = row(5000, 3.0), Shaping.of(SAMPLINGS[0], 1.0)
    logits_V[place] = bad
    assert isnan(Mass(5000).of_logits(logits_V, shaping))
    assert isnan(Mass(5000).of_logits(logits_V.bfloat16(), shaping))
    some = SomeLogits(logits_V, torch.arange(5000).flip(0), 6000)
    assert isnan(Mass(6000).of_logits(some, shaping))
    assert isnan(Mass(5000).of_logits(torch.full((5000,), -torch.inf), shaping))


def test_what_is_drawn_is_the_first_token_beyond() -> None:
    for size in SIZES:
        for params in SAMPLINGS:
            logits_V = row(size, 3.0)
            logits_V[: size // 3] = -torch.inf
            mass = mass_of(logits_V, params, size)
            # the same float32 numbers, so that only sums of tiles are rounded otherwise
            mass_V = mass._of_V.clone()
            for uniform in (0.0, *torch.rand(20, generator=torch.Generator().manual_seed(size)).tolist(), 1 - 2**-53):
                token = mass.draw(uniform)
                assert mass.probability(token) > 0
                if token != first_beyond(mass_V, uniform):
                    cdf_V = mass_V.double().cumsum(0) / mass_V.double().sum()
                    assert min(abs(float(cdf_V[place]) - uniform) for place in (token - 1, token)) < 1e-6


def test_a_draw_where_rounding_leaves_nothing_beyond() -> None:
    """The last token that has mass, and none behind it."""
    logits_V = torch.full((1000,), -torch.inf)
    logits_V[[3, 300, 301]] = torch.tensor([0.0, 0.0, -20.0])
    mass = mass_of(logits_V, SAMPLINGS[0], 1000)
    assert [mass.draw(uniform) for uniform in (0.0, 0.25, 0.75, 1.0, 1.5)] == [3, 3, 300, 301, 301]


def test_draws_follow_the_probabilities() -> None:
    """A grid of numbers gives every token its share of them."""
    logits_V = row(600, 2.0)
    mass, count = mass_of(logits_V, SAMPLINGS[0], 600), 200_000
    drawn = torch.bincount(torch.tensor([mass.draw((i + 0.5) / count) for i in range(count)]), minlength=600)
    torch.testing.assert_close(drawn / count, expected(logits_V, SAMPLINGS[0]).float(), rtol=0, atol=1.1 / count)


def test_what_a_rejection_leaves() -> None:
    for size in SIZES[1:]:
        p_V, q_V = (expected(row(size, spread), SAMPLINGS[0]).float() for spread in (3.0, 2.0))
        p, q, beyond = mass_of(row(size, 3.0), SAMPLINGS[0], size), Mass(size), Mass(size)
        q.of_probabilities(q_V)
        whole = beyond.beyond(p, q)
        assert whole == pytest.approx(float((p_V - q_V).clamp_min(0).double().sum()), rel=1e-4)
        torch.testing.assert_close(probabilities(beyond), residual(p_V, q_V).double(), rtol=1e-3, atol=1e-7)


def test_probabilities_that_are_given_are_divided_by_nothing() -> None:
    mass = Mass(300)
    mass.of_probabilities(torch.full((600,), 0.001)[::2])
    assert mass.probability(299) == pytest.approx(0.001) and mass.draw(0.999) == 299
    mass.of_probabilities(torch.full((300,), torch.nan))
    assert mass.draw(0.5) == -1


def test_a_token_is_taken_away_unless_it_is_the_only_one() -> None:
    mass = mass_of(torch.tensor([0.0, 1.0, -torch.inf]), SAMPLINGS[0], 3)
    mass.remove(1)
    assert [mass.probability(token) for token in range(3)] == [1.0, 0.0, 0.0]
    mass.remove(0)
    assert [mass.probability(token) for token in range(3)] == [1.0, 0.0, 0.0] and mass.draw(0.9) == 0


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_row_does_not_depend_on_the_number_of_threads(params: SamplingParams) -> None:
    logits_V = row(49_152, 3.0, torch.bfloat16)
    several = mass_of(logits_V, params, 49_152)
    with threads(1):
        assert torch.equal(mass_of(logits_V, params, 49_152)._of_V, several._of_V)


def test_memory_is_float32_whatever_the_programs_default_is() -> None:
    logits_V, before = row(5000, 3.0), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        mass = mass_of(logits_V, SAMPLINGS[0], 5000)
    finally:
        torch.set_default_dtype(before)
    check(probabilities(mass), expected(logits_V, SAMPLINGS[0]))


def test_the_highest_temperature() -> None:
    logits_V = torch.tensor([1.0, -torch.inf, 3.0])
    for temperature in (1e38, 1e46, 1e300):
        mass = mass_of(logits_V, SamplingParams(temperature=temperature), 3)
        assert [mass.probability(token) for token in range(3)] == [0.5, 0.0, 0.5]


def test_tokens_that_there_are_not_have_no_place() -> None:
    some = SomeLogits(torch.tensor([1.0, 9.0, 1.0, 9.0]), torch.tensor([2, -1, 0, 1 << 40]), 3)
    assert probabilities(mass_of(some, SAMPLINGS[0], 3)).tolist() == [0.5, 0.0, 0.5]


def test_what_the_kernels_do_not_take() -> None:
    apart = torch.arange(8)[::2]
    assert not takes(SomeLogits(torch.zeros(4), apart, 9)) and takes(SomeLogits(torch.zeros(4), apart.contiguous(), 9))
    for token_R in (torch.arange(4, dtype=torch.int32), torch.arange(5)):
        with pytest.raises(ValueError, match="int64, one for each"):
            SomeLogits(torch.zeros(4), token_R, 9)
    assert not takes(torch.zeros(4, dtype=torch.float64)) and not takes(torch.zeros(8)[::2])
    assert not takes(SomeLogits(torch.zeros(4).half(), None, 9))
    assert takes(torch.zeros(4)) and takes(SomeLogits(torch.zeros(4).bfloat16(), None, 9))
