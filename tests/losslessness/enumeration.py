"""The kit's enumeration, with the reference sampler and the sampling parameters that a test names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spec_sdk.contracts import Drafter, Policy, Sampler, SamplingParams, Verifier
from spec_sdk.testing import enumeration
from spec_sdk.testing.tables import TableModel
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler

MakeSampler = Callable[[Any, SamplingParams], Sampler]


def cycle_distribution(
    target: Any,
    make_drafter: Callable[[], Drafter],
    verifier: Verifier,
    params: SamplingParams,
    prompt: Sequence[int],
    make_sampler: MakeSampler = ReferenceSampler,
    policy: Policy | None = None,
) -> dict[tuple[int, ...], float]:
    """What one cycle of the scheduler emits after ``prompt``, with its probability. ``policy`` may limit it.

    The exact sampler draws draft tokens by itself, from its own rows.
    """
    own_draws = make_sampler is ExactSampler
    return enumeration.cycle_distribution(
        target, make_drafter(), verifier, make_sampler(None, params), prompt, policy, own_draws=own_draws
    )


def completed_distribution(
    emitted: Mapping[tuple[int, ...], float], target: Any, params: SamplingParams, prompt: Sequence[int], length: int
) -> torch.Tensor:
    """The joint distribution of ``length`` tokens, float64 [V**length]: of one cycle (:func:`cycle_distribution`), then
    of plain sampling.
    """
    return enumeration.completed_distribution(emitted, target, ReferenceSampler(None, params), prompt, length)


def deviation(
    target: TableModel,
    make_drafter: Callable[[], Drafter],
    verifier: Verifier,
    params: SamplingParams,
    prompt: Sequence[int],
    make_sampler: MakeSampler = ReferenceSampler,
    policy: Policy | None = None,
) -> float:
    """How far the joint distribution of a cycle's tokens, completed by plain sampling, is from the target's."""
    own_draws = make_sampler is ExactSampler
    sampler = make_sampler(None, params)
    found = enumeration.difference(target, make_drafter(), verifier, sampler, prompt, policy, own_draws=own_draws)
    return found.off
