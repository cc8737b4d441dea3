"""What a backend's filters keep of rows of logits is what the reference sampler keeps.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import Backend, SamplingParams
from spec_sdk.ops.kept_tokens import kept, numbers_of
from spec_sdk.testing.defaults import reference_sampler

VOCABULARY = 700
SAMPLINGS = (
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.4, top_k=30, top_p=0.95, min_p=0.01),
    SamplingParams(temperature=1.0),
)


def check_kept_tokens(backend: Backend) -> None:
    """Raise AssertionError unless the backend's operations (:meth:`~spec_sdk.ops.Ops.least_kept`) keep of two rows of
    each sampling the tokens to which the reference sampler gives a probability.
    """
    shaping_B4 = torch.tensor([numbers_of(params) for params in SAMPLINGS], dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        logits_RV = 3 * torch.randn((2 * len(SAMPLINGS), VOCABULARY), generator=torch.Generator().manual_seed(2))
        if dtype == torch.bfloat16:
            # many equals, of which top-p keeps some
            logits_RV = logits_RV.mul(2).round().div(2)
        logits_RV = logits_RV.to(dtype)
        # as a constraint leaves every second row
        logits_RV[1::2, : VOCABULARY // 2] = float("-inf")
        on_device_RV = logits_RV.to(backend.device)
        found = backend.ops.least_kept(on_device_RV, shaping_B4.to(backend.device))
        kept_RV = (kept(on_device_RV.float(), *found) & (on_device_RV > float("-inf"))).cpu()
        for row, found_V in enumerate(kept_RV):
            params = SAMPLINGS[row // 2]
            expected_V = reference_sampler(params).probabilities(logits_RV[row : row + 1])[0] > 0
            assert torch.equal(found_V, expected_V), (
                f"least_kept, top-k {params.top_k}, top-p {params.top_p}, min-p {params.min_p}, {dtype}: of row {row} "
                f"it keeps {int(found_V.sum())} tokens, the reference sampler {int(expected_V.sum())}"
            )
