"""Tokens drawn from a row of logits by kernels: those that the sampler draws in torch, with one read each.

Legend: V vocabulary.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.contracts import SamplingParams, SomeLogits
from spec_sdk.errors import UnusableLogits
from spec_sdk.tree import DraftDistribution
from spec_sdk_backends import row_drawing
from spec_sdk_backends.row_drawing import RowDrawing
from spec_sdk_backends.triton_ops import TritonOps
from spec_sdk_samplers.exact import ExactConfig, ExactSampler

NAN, INF = float("nan"), float("inf")
SAMPLINGS = {
    "plain": SamplingParams(0.8),
    "top-k": SamplingParams(1.3, top_k=9),
    "top-p": SamplingParams(0.7, top_p=0.9),
    "all": SamplingParams(1.2, top_k=60, top_p=0.95, min_p=0.01),
}


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_drawing, "TILE", 256)


def row(dtype: torch.dtype, device: torch.device, vocabulary: int = 700) -> torch.Tensor:
    logits_V = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits_V[300:400] = -INF
    return logits_V.to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_different_tokens_are_those_that_the_sampler_draws_in_torch(
    sampling: str, dtype: torch.dtype, device: torch.device
) -> None:
    """By the same random numbers, with the probability of the first; as many as there are, if more are asked for."""
    logits_V, params = row(dtype, device), SAMPLINGS[sampling]
    found = []
    for kernels in ("triton", "torch"):
        sampler = ExactSampler(ExactConfig(kernels), params)
        for count in (1, 4, 20):
            rng = torch.Generator().manual_seed(count)
            distribution = sampler.distribution(logits_V)
            tokens = sampler.draw_different(distribution, count, rng)
            found.append((kernels, count, tokens))
            if kernels == "triton":
                assert isinstance(distribution, DraftDistribution) and distribution.made is None
                assert distribution.known[tokens[0]] == pytest.approx(float(distribution.q_V[tokens[0]]), rel=1e-4)
                assert list(distribution.known) == tokens[:1]
    assert [tokens for kernels, _, tokens in found if kernels == "triton"] == [
        tokens for kernels, _, tokens in found if kernels == "torch"
    ]
    assert sampling != "top-k" or len(found[2][2]) == 9


def test_every_number_gives_a_token_that_may_come(device: torch.device) -> None:
    """Those at either end, too; and only tokens with a probability, in their shares. The first tile has none."""
    logits_V = torch.full((600,), -INF, device=device)
    logits_V[[300, 511, 512, 590]] = torch.tensor([0.0, 1.0, 0.0, 1.0], device=device)
    drawing = RowDrawing(logits_V, SamplingParams(1.0))
    tokens = [drawing.draw(uniform) for uniform in (0.0, 0.13, 0.14, 0.49, 0.51, 0.63, 0.64, 1 - 2**-53)]
    assert tokens == [300, 300, 511, 511, 512, 512, 590, 590]


def test_a_draw_reads_the_device_once(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = list[int](), torch.Tensor.tolist

    def counted(own: torch.Tensor) -> Any:
        reads.append(own.numel())
        return read(own)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    sampler = ExactSampler(ExactConfig("triton"), SAMPLINGS["all"])
    sampler.draw_different(sampler.distribution(row(torch.float32, device)), 3, torch.Generator().manual_seed(1))
    assert reads == [3, 3, 3]


def test_removing(device: torch.device) -> None:
    """A token that was not drawn, and the last one that there is, which stays."""
    logits_V = torch.tensor([0.0, -INF, 1.0], device=device)
    drawing = RowDrawing(logits_V, SamplingParams(1.0))
    drawing.remove(2)
    assert drawing.probability(2) == 0.0 and drawing.probability(0) == 1.0
    drawing.remove(0)
    assert drawing.draw(0.9) == 0 and drawing.probability(0) == 1.0
    drawing.remove(0)
    assert drawing.probability(0) == 1.0
    assert logits_V.tolist() == [0.0, -INF, 1.0]


def test_some_logits_are_drawn_in_the_order_of_tokens(device: torch.device) -> None:
    logits_R, token_R = torch.tensor([0.0, 1.0], device=device), torch.tensor([7, 3], device=device)
    drawing = TritonOps().drawing(SomeLogits(logits_R, token_R, 10), SamplingParams(1.0))
    assert drawing is not None and [drawing.draw(uniform) for uniform in (0.0, 0.72, 0.74)] == [3, 3, 7]


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("sampling", ["plain", "all"])
def test_unusable_logits(sampling: str, value: float, device: torch.device) -> None:
    logits_V = row(torch.float32, device)
    logits_V[650] = value
    with pytest.raises(UnusableLogits):
        RowDrawing(logits_V, SAMPLINGS[sampling]).draw(0.2)
    with pytest.raises(UnusableLogits):
        RowDrawing(torch.full_like(logits_V, -INF), SAMPLINGS[sampling]).draw(0.2)


def test_what_the_kernels_do_not_take(device: torch.device) -> None:
    """float64; and where there is a GPU, rows in host memory."""
    assert TritonOps().drawing(torch.zeros(8, dtype=torch.float64, device=device), SamplingParams(1.0)) is None
    assert (TritonOps().drawing(torch.zeros(8), SamplingParams(1.0)) is None) == (device.type == "cuda")
