"""Whether a run goes by a cost curve: a kept one, one that it measures, or none."""

from __future__ import annotations

import sys

from spec_sdk.contracts import CostSource, PassCosts
from spec_sdk.errors import UserError

COSTS = {
    "auto": "the kept cost curve; without one, measured where the run is long enough, else learned",
    "measure": "the kept cost curve; without one, measured before the run, in less than 5 s",
    "learn": "learned from the run's own times",
}
"""Of the option ``costs`` of every policy that goes by what passes cost."""
MEASURING_S = 5.0
"""What measuring a cost curve takes at most."""
MEASURING_SHARE = 0.01
"""Of a run's time as plain decoding, what measuring may take where nobody asked for it."""
LEAST_TOKENS = 1000
"""A run of fewer is not even asked how long it will take."""


def obtain_costs(costs: CostSource, choice: str) -> PassCosts | None:
    """The costs of passes, as ``policy.costs`` says; None: they are learned. Raises UserError for ``measure`` where
    nothing can be measured.
    """
    if choice == "learn":
        return None
    if choice == "measure" and costs.unavailable is not None:
        raise UserError(f"policy.costs=measure: {costs.unavailable}; use policy.costs=learn")
    known = costs.kept()
    if known is not None or not (choice == "measure" or is_long_enough(costs)):
        return known
    known = costs.measure()
    said = "a pass takes too long to measure a cost curve" if known is None else "measured what passes cost"
    print(f"policy: {said}" + ("" if known is None else f" in {known.measured_s:.1f} s"), file=sys.stderr)
    return known


def is_long_enough(costs: CostSource) -> bool:
    """Whether a run earns a measurement of its costs that nobody asked for: of its time it would take a small share."""
    tokens = costs.expected_tokens
    if tokens is None or tokens < LEAST_TOKENS or costs.unavailable is not None:
        return False
    return MEASURING_SHARE * tokens * costs.seconds_of_plain_pass() >= MEASURING_S
