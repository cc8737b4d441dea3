"""The reference sampler against transformers' logits processors, and at the edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from spec_sdk.contracts import SamplingParams
from spec_sdk.ops import in_pass, residual, without
from spec_sdk.testing import check_sampler
from spec_sdk_samplers.reference import ReferenceSampler


def sampler(**params: float) -> ReferenceSampler:
    return ReferenceSampler(None, SamplingParams(**params))  # type: ignore[arg-type]


def transformers_probabilities(logits_NV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """What transformers' ``generate`` samples from, its processors in its own order."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(MinPLogitsWarper(params.min_p))
    no_prefix: Any = torch.zeros((logits_NV.shape[0], 1), dtype=torch.long)
    scores_NV: Any = logits_NV.clone()
    return processors(no_prefix, scores_NV).softmax(-1)


@pytest.mark.parametrize("vocabulary", [7, 1000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_k=5000),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.5, top_p=0.05),
        SamplingParams(temperature=1.0, top_p=0.999),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.2, top_k=6, top_p=0.8, min_p=0.05),
        SamplingParams(temperature=0.3, top_k=40, top_p=0.5),
    ],
    ids=str,
)
def test_probabilities_are_those_of_transformers(params: SamplingParams, vocabulary: int) -> None:
    logits_NV = 3 * torch.randn((16, vocabulary), generator=torch.Generator().manual_seed(vocabulary))
    given_NV = ReferenceSampler(None, params).probabilities(logits_NV)
    expected_NV = transformers_probabilities(logits_NV, params)
    assert torch.equal(given_NV > 0, expected_NV > 0)
    torch.testing.assert_close(given_NV, expected_NV, atol=1e-6, rtol=1e-5)


def test_a_token_that_is_ruled_out_stays_out() -> None:
    logits_NV = torch.tensor([[1.0, float("-inf"), 2.0, float("-inf"), 0.5]])
    for params in (SamplingParams(temperature=1), SamplingParams(temperature=1, top_k=4, top_p=0.99, min_p=0.01)):
        p_V = ReferenceSampler(None, params).probabilities(logits_NV)[0]
        assert p_V[[1, 3]].tolist() == [0, 0]
        assert float(p_V.sum()) == pytest.approx(1)


def test_ties() -> None:
    """top-k keeps all that tie with the k-th, as transformers does; the border of top-p falls behind the lower ids."""
    tied_NV = torch.zeros((1, 8))
    assert int((sampler(temperature=1.0, top_k=3).probabilities(tied_NV) > 0).sum()) == 8
    assert (sampler(temperature=1.0, top_p=0.5).probabilities(tied_NV)[0] > 0).nonzero()[:, 0].tolist() == [0, 1, 2, 3]
    assert sampler(temperature=0).choices(tied_NV).tolist() == [0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-50])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits_NV = torch.tensor([[80.0, 81.0, -300.0], [-5000.0, -5001.0, -5002.0]])
    assert sampler(temperature=temperature).probabilities(logits_NV).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[float("nan"), 1.0], [float("-inf"), float("-inf")], [float("inf"), 1.0]])
def test_useless_logits_are_refused_by_row(temperature: float, bad: list[float]) -> None:
    logits_NV = torch.tensor([[0.0, 1.0], [2.0, 1.0], bad])
    with pytest.raises(ValueError, match="row 2 of the logits"):
        sampler(temperature=temperature).probabilities(logits_NV)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_choices_are_those_made_in_a_pass(dtype: torch.dtype) -> None:
    """Over rows of every width, with ties and with what is not usable at any place; the logits stay as they are."""
    rng = torch.Generator().manual_seed(2)
    for columns in (1, 7, 64, 129, 1000):
        logits_NV = torch.randint(-3, 4, (40, columns), generator=rng).to(dtype)
        for row, wrong in enumerate((float("nan"), float("inf"), float("-inf")) * 8):
            logits_NV[row, int(torch.randint(columns, (), generator=rng))] = wrong
        logits_NV[30] = float("-inf")
        before_NV, some = logits_NV.clone(), logits_NV[::2, : columns // 2 + 1]
        for given in (logits_NV, some):
            found = sampler(temperature=0).choices(given)
            assert found.dtype == torch.int64 and torch.equal(found, in_pass.choices(given))
        assert torch.equal(logits_NV.nan_to_num(9), before_NV.nan_to_num(9))
    assert sampler(temperature=0).choices(torch.zeros((0, 5))).tolist() == []


def test_low_precision_logits_give_float32_probabilities() -> None:
    logits_NV = torch.randn((3, 11), generator=torch.Generator().manual_seed(1)).bfloat16()
    p_NV = sampler(temperature=0.8, top_p=0.9).probabilities(logits_NV)
    assert p_NV.dtype == torch.float32
    torch.testing.assert_close(p_NV, sampler(temperature=0.8, top_p=0.9).probabilities(logits_NV.float()))


def test_nothing_can_be_drawn_from_nothing() -> None:
    for mass in (0.0, float("nan")):
        with pytest.raises(ValueError, match="cannot draw a token"):
            sampler(temperature=1.0).draw(torch.full((4,), mass), torch.Generator())


def test_a_distribution_with_a_single_token_left_has_no_rest() -> None:
    one_hot_V = torch.tensor([0.0, 1.0, 0.0])
    assert torch.equal(without(one_hot_V, 1), one_hot_V)
    assert torch.equal(residual(one_hot_V, one_hot_V), one_hot_V)


def test_conformance() -> None:
    check_sampler(lambda params: ReferenceSampler(None, params))
