"""Which tokens of a row the filters keep, by the kernel: those that sorting finds.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.contracts import SamplingParams
from spec_sdk.ops import Ops
from spec_sdk.ops.kept_tokens import kept, numbers_of
from spec_sdk_backends import kept_tokens
from spec_sdk_backends.triton_ops import TritonOps

NAN, INF = float("nan"), float("inf")
SAMPLINGS = {
    "top-k": SamplingParams(1.0, top_k=7),
    "one": SamplingParams(0.7, top_k=1),
    "more than a tile": SamplingParams(0.7, top_k=300),
    "top-p": SamplingParams(0.7, top_p=0.9),
    "a small top-p": SamplingParams(1.5, top_p=1e-9),
    "a large top-p": SamplingParams(1.5, top_p=0.999),
    "min-p": SamplingParams(1.5, min_p=0.05),
    "all": SamplingParams(2.0, top_k=100, top_p=0.8, min_p=0.01),
    "top-p of top-k": SamplingParams(0.7, top_k=600, top_p=0.9),
    "min-p below": SamplingParams(1.0, top_k=3, min_p=1e-9),
    "cold": SamplingParams(1e-30, top_p=0.9),
    "none": SamplingParams(1.0),
    "top-k of all": SamplingParams(1.0, top_k=10**9),
}


def numbers(device: torch.device, *samplings: SamplingParams) -> torch.Tensor:
    return torch.tensor([numbers_of(params) for params in samplings], dtype=torch.float64, device=device)


def near_a_border(logits_V: torch.Tensor, params: SamplingParams) -> bool:
    """Whether top-p cuts where the mass before a token is ``top_p``, but for rounding; in float64."""
    score_V = logits_V.double()
    if 0 < params.top_k < len(score_V):
        score_V = score_V.masked_fill(score_V < score_V.topk(params.top_k).values[-1], -INF)
    p_V = ((score_V - score_V.max()) / params.temperature).softmax(-1).sort(descending=True).values
    return bool(((p_V.cumsum(0) - p_V - params.top_p).abs() < 1e-6).any())


@pytest.mark.parametrize(
    ("dtype", "room"), [(torch.float32, 8), (torch.bfloat16, kept_tokens.ROOM), (torch.float16, kept_tokens.ROOM)]
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_is_kept(
    sampling: str, dtype: torch.dtype, room: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows nearly even, peaked, and with tokens that a constraint rules out; several tiles, of which the last is not
    full; and where what may be kept has no room. 16 bits have many equals.
    """
    monkeypatch.setattr(kept_tokens, "ROOM", room)
    monkeypatch.setattr(kept_tokens, "TILE", 256)
    params, rng = SAMPLINGS[sampling], torch.Generator().manual_seed(1)
    for vocabulary in (5, 256, 700):
        logits_RV = torch.randn((4, vocabulary), generator=rng) * torch.tensor([[0.5], [3.0], [8.0], [3.0]])
        logits_RV[3, 1::2] = -INF
        logits_RV = logits_RV.to(device, dtype)
        shaping_14 = numbers(device, params)
        found_RV = kept(logits_RV.float(), *TritonOps().least_kept(logits_RV, shaping_14))
        expected_RV = kept(logits_RV.float(), *Ops().least_kept(logits_RV, shaping_14))
        possible_RV = logits_RV > -INF
        for row, (found_V, expected_V) in enumerate(
            zip(found_RV & possible_RV, expected_RV & possible_RV, strict=True)
        ):
            assert torch.equal(found_V, expected_V) or near_a_border(logits_RV[row], params), row


def test_equals_at_the_border(device: torch.device) -> None:
    """top-k keeps all that tie with the k-th, top-p those with the lowest tokens; zeros of either sign are equal."""
    even_1V = torch.zeros((1, 10), device=device)
    even_1V[0, ::2] = -0.0
    for params, count in ((SamplingParams(1.0, top_p=0.45), 5), (SamplingParams(1.0, top_k=3), 10)):
        found_1V = kept(even_1V, *TritonOps().least_kept(even_1V, numbers(device, params)))
        assert found_1V[0].tolist() == [True] * count + [False] * (10 - count)
    pair_1V = torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0]], device=device)
    found_1V = kept(pair_1V, *TritonOps().least_kept(pair_1V, numbers(device, SamplingParams(1.0, top_p=0.85))))
    assert found_1V[0].tolist() == [True, True, False, True, False]


def test_rows_share_out_samplings(device: torch.device) -> None:
    """Two rows of each of three requests; and rows that do not lie side by side."""
    samplings = (SamplingParams(1.0, top_k=2), SamplingParams(1.0), SamplingParams(1.0, min_p=0.5))
    logits_RV = 2 * torch.randn((6, 80), generator=torch.Generator().manual_seed(3)).to(device)
    wide_RV = torch.cat((logits_RV, logits_RV), 1)
    for rows_RV in (logits_RV, wide_RV[:, :80]):
        shaping_34 = numbers(device, *samplings)
        count_R = kept(rows_RV, *TritonOps().least_kept(rows_RV, shaping_34)).sum(-1).tolist()
        assert count_R[:4] == [2, 2, 80, 80] and all(1 <= count < 20 for count in count_R[4:])
        assert count_R == kept(rows_RV, *Ops().least_kept(rows_RV, shaping_34)).sum(-1).tolist()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_an_unusable_row_ends_and_spoils_no_other(value: float, device: torch.device) -> None:
    logits_RV = torch.randn((3, 300), generator=torch.Generator().manual_seed(4)).to(device)
    sound_RV = logits_RV.clone()
    logits_RV[1] = value
    shaping_14 = numbers(device, SamplingParams(1.0, top_k=50, top_p=0.9, min_p=0.1))
    found, expected = (TritonOps().least_kept(rows_RV, shaping_14) for rows_RV in (logits_RV, sound_RV))
    for one_R, other_R in zip(found, expected, strict=True):
        assert one_R[[0, 2]].tolist() == other_R[[0, 2]].tolist()


def test_what_the_kernel_does_not_take(device: torch.device) -> None:
    """float64, and no rows, are the reference's."""
    shaping_14 = numbers(device, SamplingParams(1.0, top_k=2))
    logits_RV = torch.randn((2, 9), generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(device)
    assert kept(logits_RV.float(), *TritonOps().least_kept(logits_RV, shaping_14)).sum(-1).tolist() == [2, 2]
    assert TritonOps().least_kept(logits_RV[:0].float(), shaping_14)[0].shape == (0,)
