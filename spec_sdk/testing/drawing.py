"""What a backend draws tokens from is what the reference sampler makes of the same logits.

Legend: V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import Backend, SamplingParams, SomeLogits
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.draws import Drawing
from spec_sdk.testing.defaults import reference_sampler

VOCABULARY = 700
SAMPLINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.4, top_k=30, min_p=0.01),
)
UNIFORMS = (0.0, *(i / 29 for i in range(1, 29)), 1 - 2**-53)
ROUNDING = 1e-5
"""Of probabilities and their sums in float32."""


def check_drawing(backend: Backend) -> bool:
    """Raise AssertionError unless the backend's operations draw tokens (:meth:`~spec_sdk.ops.Ops.drawing`) as the
    reference sampler does. Returns whether they draw any.
    """
    asked = False
    for params in SAMPLINGS:
        for dtype in (torch.float32, torch.bfloat16):
            for logits in _rows(dtype, backend.device):
                drawing = backend.ops.drawing(logits, params)
                if drawing is not None:
                    asked = True
                    _check(drawing, logits, params)
            _check_refusal(backend, dtype)
    return asked


def _rows(dtype: torch.dtype, device: torch.device) -> list[torch.Tensor | SomeLogits]:
    rng = torch.Generator().manual_seed(1)
    logits_V = (3 * torch.randn(VOCABULARY, generator=rng)).to(device, dtype)
    token_R = torch.randperm(VOCABULARY, generator=rng)[:90].to(device)
    ruled_out_V = logits_V.clone()
    ruled_out_V[: VOCABULARY // 2] = float("-inf")
    return [logits_V, ruled_out_V, SomeLogits(logits_V[:90], token_R, VOCABULARY)]


def _check(drawing: Drawing, logits: torch.Tensor | SomeLogits, params: SamplingParams) -> None:
    logits_V = logits.full_V if isinstance(logits, SomeLogits) else logits
    p_V = reference_sampler(params).probabilities(logits_V.cpu()[None])[0].double()
    found_V = torch.tensor([drawing.probability(token) for token in range(VOCABULARY)], dtype=torch.float64)
    where = f"temperature {params.temperature}, top-k {params.top_k}, top-p {params.top_p}, {logits_V.dtype}"
    off = float((found_V - p_V).abs().max())
    assert off <= ROUNDING, f"drawing, {where}: a probability is off by {off:.1e}"
    cdf_V = p_V.cumsum(0)
    for uniform in UNIFORMS:
        token = drawing.draw(uniform)
        assert 0 <= token < VOCABULARY and p_V[token] > 0, f"drawing, {where}: {token} has no probability"
        first, last = float(cdf_V[token] - p_V[token]), float(cdf_V[token])
        assert first - ROUNDING <= uniform <= last + ROUNDING, (
            f"drawing, {where}: {uniform} draws token {token}, whose share of the numbers is {first} to {last}"
        )
    likeliest = int(p_V.argmax())
    drawing.remove(likeliest)
    p_V[likeliest] = 0
    left = drawing.probability(likeliest), drawing.probability(int(p_V.argmax()))
    assert left[0] == 0 and abs(left[1] - float(p_V.max() / p_V.sum())) <= ROUNDING, (
        f"drawing, {where}: without its likeliest token the row has {left[1]} for the next one"
    )


def _check_refusal(backend: Backend, dtype: torch.dtype) -> None:
    for bad, where in ((float("nan"), slice(7, 8)), (float("inf"), slice(7, 8)), (float("-inf"), slice(None))):
        logits_V = torch.zeros(VOCABULARY, device=backend.device, dtype=dtype)
        logits_V[where] = bad
        try:
            taken = backend.ops.drawing(logits_V, SAMPLINGS[0])
            drawn = None if taken is None else taken.draw(0.5)
        except UnusableLogits:
            continue
        assert drawn is None, f"drawing: logits of {dtype} with {bad} among them are taken"
