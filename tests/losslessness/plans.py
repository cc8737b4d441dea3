"""The kinds of trees that losslessness is shown for, and the sampling parameters."""

from __future__ import annotations

from spec_sdk.contracts import SamplingParams
from spec_sdk.testing.tables import DrawPlan, PlannedDraw

# a bonus token is among the three tokens looked at only if the path before it has at most two
CHAINS: dict[str, DrawPlan] = {
    "one drawn token": [[PlannedDraw("with_replacement")]],
    "two drawn tokens": [[PlannedDraw("with_replacement")]] * 2,
    "drawn chain": [[PlannedDraw("with_replacement")]] * 3,
    "top-1 chain": [[PlannedDraw("chosen")]] * 3,
    "chain of all kinds": [
        [PlannedDraw("without_replacement")],
        [PlannedDraw("chosen", 1)],
        [PlannedDraw("with_replacement")],
    ],
}
TREES: dict[str, DrawPlan] = {
    "top-2 tree": [[PlannedDraw("chosen")] * 2] * 3,
    "every token chosen": [[PlannedDraw("chosen")] * 3, [PlannedDraw("chosen")]],
    "repeated draws": [[PlannedDraw("with_replacement")] * 3, [PlannedDraw("with_replacement")]],
    "distinct draws": [[PlannedDraw("without_replacement")] * 2, [PlannedDraw("without_replacement")]],
    "distinct draws of the whole support": [[PlannedDraw("without_replacement")] * 3, [PlannedDraw("chosen")]],
    "one q_V drawn from in both ways": [
        [PlannedDraw("without_replacement"), PlannedDraw("with_replacement"), PlannedDraw("without_replacement")],
    ],
    "two drafters merged": [
        [PlannedDraw("with_replacement"), PlannedDraw("with_replacement", 1), PlannedDraw("with_replacement")],
        [PlannedDraw("with_replacement", 1)],
    ],
    "all kinds, two drafters": [
        [
            PlannedDraw("without_replacement"),
            PlannedDraw("chosen", 1),
            PlannedDraw("with_replacement", 1),
            PlannedDraw("without_replacement"),
        ],
        [PlannedDraw("chosen")],
    ],
}
WIDE: dict[str, DrawPlan] = {
    "two drawn children everywhere": [[PlannedDraw("with_replacement")] * 2] * 2,
    "two distinct children everywhere": [[PlannedDraw("without_replacement")] * 2] * 2,
    "chosen and drawn everywhere": [[PlannedDraw("chosen"), PlannedDraw("without_replacement", 1)]] * 2,
}
"""Too many outcomes to be enumerated on every change."""
SAMPLINGS: dict[str, SamplingParams] = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.6": SamplingParams(temperature=0.6),
    "top-k": SamplingParams(temperature=1.2, top_k=2),
    "top-p": SamplingParams(temperature=1.3, top_p=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.3),
}
