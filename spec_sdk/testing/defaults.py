"""What a check uses when its caller does not care: the installed reference sampler, and requests made of nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spec_sdk.contracts import RequestState, Sampler, SamplingParams, Verifier
from spec_sdk.ops import Ops
from spec_sdk.registry import Registry

MakeSampler = Callable[[SamplingParams], Sampler]


class MultiStepRule(Verifier):
    """The rule of acceptance for trees of any draws, by which drafters and samplers are judged."""

    name = "multi_step rule"
    guarantee = "distribution"
    exact_when_greedy = True
    rule = "multi_step"


def reference_sampler(params: SamplingParams) -> Sampler:
    """The installed sampler called ``reference``, found as any plugin is. Raises UserError if there is none."""
    plugin: Any
    plugin, config = Registry.discover().configure("sampler", {"name": "reference"})
    sampler: Sampler = plugin(config, params)
    return sampler


def request_for(
    tokens: Sequence[int], sampler: Sampler, seed: int, max_new_tokens: int = 1 << 20, slot: int = 0
) -> RequestState:
    """A request whose prompt is ``tokens``, in ``slot``: what an engine keeps of it. Its id is its slot.

    Plugins are given its ``view``.
    """
    rng = torch.Generator().manual_seed(seed)
    return RequestState(list(tokens), len(tokens), max_new_tokens, sampler, rng, id=slot, slot=slot, ops=Ops())
