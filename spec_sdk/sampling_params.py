"""What a request asks of its sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spec_sdk.config.option import LARGEST_INT64, option


@dataclass(frozen=True)
class SamplingParams:
    """How logits become probabilities: the options ``sampling.*`` of a run.

    Filters are applied in the order top-k, top-p, min-p. ``repetition_penalty``: before all else, the logits of the
    tokens that stand before (prompt, output and the drafted tokens of the path) are divided by it where they are
    positive, and multiplied by it where not.
    """

    temperature: float = option(0.0, "logits are divided by it", minimum=0, below=math.inf, means={0.0: "greedy"})
    top_k: int = option(0, "keep the k most probable tokens", minimum=0, means={0: "off"})
    top_p: float = option(
        1.0, "keep the fewest most probable tokens that sum to p", above=0, maximum=1, means={1.0: "off"}
    )
    min_p: float = option(
        0.0, "keep tokens of at least this share of the largest probability", minimum=0, maximum=1, means={0.0: "off"}
    )
    seed: int = option(
        0,
        "of all random numbers of the run; runs repeat where the policy looks at no clock (policy=fixed)",
        minimum=0,
        maximum=LARGEST_INT64,
    )
    repetition_penalty: float = option(
        1.0,
        "of every token of the prompt and the output so far",
        minimum=0.01,
        maximum=100,
        means={1.0: "off"},
    )

    @property
    def filtered(self) -> bool:
        """Whether top-k, top-p or min-p is on."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0
