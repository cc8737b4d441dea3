"""The samplers' arithmetic at the ends: random numbers of 0 and just below 1, mass that does not sum to 1.

Legend: V vocabulary.
"""

from __future__ import annotations

import math

import pytest
import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk.ops.residual import accepts
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler

PARAMS = SamplingParams(temperature=1.0)
SAMPLERS = [ReferenceSampler(None, PARAMS), ExactSampler(None, PARAMS)]
JUST_BELOW_1 = math.nextafter(1.0, 0.0)
samplers = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)


@samplers
@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
def test_a_draw_never_gives_a_token_without_mass(sampler: Sampler, scale: float) -> None:
    """Whatever the mass sums to, the numbers in [0, 1) are spread over all of it and nothing else."""
    mass_V = scale * torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    drawn = [sampler.draw(mass_V, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, JUST_BELOW_1)]
    assert drawn == [1, 1, 3, 3, 4, 4]


def test_a_token_without_mass_is_never_accepted() -> None:
    assert not accepts(0.0, 0.5, 0.0)
    assert not accepts(0.0, 1.0, 0.0)


def test_a_token_that_the_target_likes_as_well_is_always_accepted() -> None:
    assert accepts(0.3, 0.3, JUST_BELOW_1)
    assert accepts(1.0, 1.0, JUST_BELOW_1)
    assert not accepts(0.3, 0.6, 0.5)
    assert accepts(0.3, 0.6, 0.4999)
