"""Rows in pieces give what whole rows give, wherever a piece or a tile ends."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.inversion import first_beyond
from spec_sdk.ops.pieces import PIECE, TILE, exceeding, largest, pieces, tile_sums, total
from spec_sdk.tree import TreeBuilder
from spec_sdk_samplers.sigmoid import SigmoidSampler
from tests.samplers.random_cases import accepted

SIZES = (1, TILE - 1, TILE, TILE + 1, PIECE - 1, PIECE, PIECE + 1, PIECE + TILE + 1, 2 * PIECE, 100_003)
NAN, INF = float("nan"), float("inf")


def distributions(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(size)
    p_V, q_V = torch.randn((2, size), generator=rng).mul_(3).softmax(-1)
    return p_V, q_V


def by_cumulated_sum(mass_V: torch.Tensor, uniform: float) -> int:
    cdf_V = mass_V.double().cumsum(0)
    return int(torch.searchsorted(cdf_V, uniform * cdf_V[-1], right=True))


@pytest.mark.parametrize("size", SIZES)
def test_the_token_is_that_of_a_cumulated_sum(size: int) -> None:
    p_V, q_V = distributions(size)
    rest_V = (p_V - q_V).clamp_min(0.0)
    for uniform in torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist():
        found = first_beyond(p_V, uniform), first_beyond(p_V, uniform, q_V)
        wanted = by_cumulated_sum(p_V, uniform), by_cumulated_sum(rest_V if rest_V.any() else p_V, uniform)
        for token, other, mass_V in zip(found, wanted, (p_V, rest_V if rest_V.any() else p_V), strict=True):
            assert mass_V[token] > 0
            if token != other:
                # sums of tiles are rounded to float32: no more than that may lie between
                low, high = sorted((token, other))
                assert mass_V[low : high + 1].double().sum() - mass_V[[low, high]].max() < 1e-6 * mass_V.sum()


@pytest.mark.parametrize("size", SIZES)
def test_pieces_cover_a_row_and_wake_no_thread(size: int) -> None:
    p_V, q_V = distributions(size)
    cut = list(pieces(p_V, q_V))
    assert all(p.shape[0] == q.shape[0] < 32_768 for p, q in cut)
    assert torch.equal(torch.cat([p for p, _ in cut]), p_V) and torch.equal(torch.cat([q for _, q in cut]), q_V)
    rest_V = (p_V - q_V).clamp_min(0.0)
    torch.testing.assert_close(tile_sums(p_V, q_V).sum(), rest_V.sum())
    assert total(p_V) == pytest.approx(1.0, abs=1e-5) and largest(p_V) == float(p_V.max())
    assert torch.equal(exceeding(p_V, q_V, p_V), rest_V) and torch.equal(p_V, rest_V), "written in place"


def test_where_nothing_exceeds_the_first_distribution_is_left() -> None:
    p_V, _ = distributions(PIECE + 5)
    assert first_beyond(p_V, 0.3, p_V) == first_beyond(p_V, 0.3, 2 * p_V) == first_beyond(p_V, 0.3) >= 0


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("at", [0, PIECE - 1, PIECE, 2 * PIECE + 6])
def test_an_unusable_number_in_any_piece_is_seen(bad: float, at: int) -> None:
    p_V, q_V = distributions(2 * PIECE + 7)
    p_V[at] = bad
    assert first_beyond(p_V, 0.5) == first_beyond(p_V, 0.5, q_V) == -1
    assert not largest(p_V) < INF
    sampler = SigmoidSampler(None, SamplingParams(temperature=1.0))
    tree = TreeBuilder(0)
    tree.add(0, 3, "with_replacement", sampler.distribution(q_V))
    with pytest.raises(UnusableLogits, match="row 0"):
        accepted(sampler, tree.build().tree, p_V.repeat(2, 1), [0.5, 0.5])


def test_a_piece_without_any_finite_number_is_no_fault() -> None:
    logits_V = torch.zeros(2 * PIECE)
    logits_V[:PIECE] = -INF
    assert largest(logits_V) == 0.0
