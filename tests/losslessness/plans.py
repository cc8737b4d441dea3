"""The kinds of trees that losslessness is shown for, and the sampling parameters."""

from __future__ import annotations

from spec_sdk.contracts import SamplingParams
from spec_sdk.testing.tables import DrawPlan

# a bonus token is among the three tokens looked at only if the path before it has at most two
CHAINS: dict[str, DrawPlan] = {
    "one drawn token": [[("with_replacement", 0)]],
    "two drawn tokens": [[("with_replacement", 0)]] * 2,
    "drawn chain": [[("with_replacement", 0)]] * 3,
    "top-1 chain": [[("chosen", 0)]] * 3,
    "chain of all kinds": [[("without_replacement", 0)], [("chosen", 1)], [("with_replacement", 0)]],
}
TREES: dict[str, DrawPlan] = {
    "top-2 tree": [[("chosen", 0)] * 2] * 3,
    "every token chosen": [[("chosen", 0)] * 3, [("chosen", 0)]],
    "repeated draws": [[("with_replacement", 0)] * 3, [("with_replacement", 0)]],
    "distinct draws": [[("without_replacement", 0)] * 2, [("without_replacement", 0)]],
    "distinct draws of the whole support": [[("without_replacement", 0)] * 3, [("chosen", 0)]],
    "one q_V drawn from in both ways": [
        [("without_replacement", 0), ("with_replacement", 0), ("without_replacement", 0)],
    ],
    "two drafters merged": [
        [("with_replacement", 0), ("with_replacement", 1), ("with_replacement", 0)],
        [("with_replacement", 1)],
    ],
    "all kinds, two drafters": [
        [("without_replacement", 0), ("chosen", 1), ("with_replacement", 1), ("without_replacement", 0)],
        [("chosen", 0)],
    ],
}
WIDE: dict[str, DrawPlan] = {
    "two drawn children everywhere": [[("with_replacement", 0)] * 2] * 2,
    "two distinct children everywhere": [[("without_replacement", 0)] * 2] * 2,
    "chosen and drawn everywhere": [[("chosen", 0), ("without_replacement", 1)]] * 2,
}
"""Too many outcomes to be enumerated on every change."""
SAMPLINGS: dict[str, SamplingParams] = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.6": SamplingParams(temperature=0.6),
    "top-k": SamplingParams(temperature=1.2, top_k=2),
    "top-p": SamplingParams(temperature=1.3, top_p=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.3),
}
