"""What a request asks of its sampler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """How logits become probabilities. ``temperature`` 0 is greedy; 0 / 1.0 / 0.0 switch top_k / top_p / min_p off.

    ``repetition_penalty``: before all else, the logits of the tokens that stand before (prompt, output and the drafted
    tokens of the path) are divided by it where they are positive, and multiplied by it where not; 1.0 is off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0

    @property
    def filtered(self) -> bool:
        """Whether top-k, top-p or min-p is on."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0
