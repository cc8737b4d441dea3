"""The tokens that top-k and top-p can keep, and the faults of a row, wherever in it they lie."""

from __future__ import annotations

import math

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.kept_tokens import kept, least_kept, numbers_of
from spec_sdk_samplers.candidates import TILE, nucleus, top_k_candidates, top_p_candidates
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler

SIZES = (3 * TILE, 20 * TILE + 5, 40_000)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("top_k", [1, 2, 7, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_k_keeps_the_largest_and_all_that_tie(size: int, top_k: int, dtype: torch.dtype) -> None:
    """In bfloat16 many logits are equal."""
    logits_V = torch.randn(size, generator=torch.Generator().manual_seed(size)).mul(3).to(dtype)
    id_K, top = top_k_candidates(logits_V, top_k)
    kth = logits_V.sort(descending=True).values[top_k - 1]
    assert torch.equal(id_K, (logits_V >= kth).nonzero()[:, 0])
    assert top == float(logits_V.max())


@pytest.mark.parametrize("params", [SamplingParams(0.8, 50, 0.9), SamplingParams(1.0, 0, 0.9), SamplingParams(0.7, 5)])
@pytest.mark.parametrize("at", [0, TILE, 1000, -1])
def test_the_distribution_is_the_references_and_its_faults_are_seen(params: SamplingParams, at: int) -> None:
    logits_V = 2 * torch.randn(20 * TILE + 5, generator=torch.Generator().manual_seed(1))
    exact, reference = ExactSampler(None, params), ReferenceSampler(None, params)
    torch.testing.assert_close(exact.row_distribution(logits_V, 0, "p"), reference.probabilities(logits_V[None])[0])
    for bad in (NAN, INF):
        broken_V = logits_V.clone()
        broken_V[at] = bad
        with pytest.raises(UnusableLogits, match="row 4"):
            exact.row_distribution(broken_V, 4, "p")
    # one finite logit is a distribution
    one_V = torch.full_like(logits_V, -INF)
    with pytest.raises(UnusableLogits):
        exact.row_distribution(one_V, 0, "p")
    one_V[at] = 3.0
    assert exact.row_distribution(one_V, 0, "p")[at] == 1.0


def test_the_nucleus_is_the_fewest_tokens_and_the_first_of_equals() -> None:
    p_K = torch.tensor([0.25, 0.125, 0.25, 0.125, 0.25])
    assert nucleus(p_K, 0.6).tolist() == [0.25, 0, 0.25, 0, 0.25]
    assert nucleus(p_K, 0.5).tolist() == [0.25, 0, 0.25, 0, 0]
    assert nucleus(p_K, 0.8).tolist() == [0.25, 0.125, 0.25, 0, 0.25]


@pytest.mark.parametrize("size", [1000, 49_152])
@pytest.mark.parametrize("top_p", [1e-9, 1e-6])
def test_a_small_nucleus_of_equals_is_one_token(size: int, top_p: float) -> None:
    """None of them may be above (1 - top_p) / V, once that is rounded."""
    params, logits_V = SamplingParams(1.0, 0, top_p), torch.full((size,), 3.0)
    for p_V in (
        ReferenceSampler(None, params).probabilities(logits_V[None])[0],
        ExactSampler(None, params).row_distribution(logits_V, 0, "p"),
    ):
        assert p_V.nonzero().tolist() == [[0]] and p_V[0] == 1.0
    assert len(top_p_candidates(torch.full((10,), 0.0999), top_p)) == 10


@pytest.mark.parametrize("min_p", [0.0, 1e-6])
def test_a_nucleus_of_nearly_all_keeps_what_top_k_keeps(min_p: float) -> None:
    """The sum of what top-k keeps is rounded, and does not reach such a top-p in some of the rows."""
    logits_RV = torch.randn((16, 3000), generator=torch.Generator().manual_seed(3))
    params = SamplingParams(1.0, 50, 1 - 1e-8, min_p)
    shaping_14 = torch.tensor([numbers_of(params)], dtype=torch.float64)
    kept_RV = kept(logits_RV, *least_kept(logits_RV, shaping_14))
    assert torch.equal(kept_RV, ReferenceSampler(None, params).probabilities(logits_RV) > 0)


def test_what_top_p_leaves_aside_is_no_more_than_it_may() -> None:
    p_V = torch.randn(40_000, generator=torch.Generator().manual_seed(2)).mul(4).softmax(-1)
    id_K = top_p_candidates(p_V, 0.95)
    assert len(id_K) < len(p_V) and math.isclose(float(p_V.sum() - p_V[id_K].sum()), 0, abs_tol=0.05)
