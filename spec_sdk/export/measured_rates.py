"""Acceptance by place in a chain, measured by answering prompts with the draft that is exported."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from spec_sdk.model_inputs import model_inputs
from spec_sdk.pipeline import Pipeline
from spec_sdk.prompts import Prompt
from spec_sdk.settings import Settings
from spec_sdk.verdict_recorder import VerdictRecorder

DEEPEST = 8
"""Tokens of a chain to measure with."""
FEWEST = 8
"""Chains of which an acceptance rate is taken."""


def chain_settings(settings: Settings, depth: int) -> Settings:
    """The run's settings with greedy chains of ``depth`` tokens, as engines draft them unless told otherwise."""
    chain: dict[str, Any] = {"growth": "beam", "width": 1} if "growth" in settings.drafter else {}
    if "candidates" in settings.drafter:
        chain["candidates"] = 1
    return dataclasses.replace(
        settings,
        drafter={**settings.drafter, **chain},
        policy={"name": "fixed", "depth": depth},
        sampling=dataclasses.replace(settings.sampling, temperature=0.0),
    )


def measured_rates(pipeline: Pipeline, prompts: Sequence[Prompt], settings: Settings) -> tuple[float, ...]:
    """a_1, a_2 …: of the chains whose first k − 1 tokens were accepted and that have a token k, the share in which it
    was accepted too. Ends where fewer than :data:`FEWEST` chains came so far.
    """
    reached: dict[int, int] = {}
    accepted: dict[int, int] = {}
    for one in model_inputs(pipeline, prompts, settings):
        recorder = VerdictRecorder(pipeline.verifier)
        recorded = dataclasses.replace(pipeline, verifier=recorder)
        stream = recorded.stream(one.tokens, max_new_tokens=settings.max_new_tokens, **one.options)
        with contextlib.closing(stream):  # type: ignore[type-var]
            for _ in stream:
                pass
        for verdict in recorder.verdicts:
            taken = len(verdict.path) - 1
            for place in range(1, min(taken + 1, verdict.tree.depth) + 1):
                reached[place] = reached.get(place, 0) + 1
                accepted[place] = accepted.get(place, 0) + (place <= taken)
    rates = []
    for place in sorted(reached):
        if reached[place] < FEWEST:
            break
        rates.append(accepted[place] / reached[place])
    return tuple(rates)
