"""A sampler with a filter of its own (legend: N rows, V vocabulary)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import Sampler, option


@dataclass
class NSigmaConfig:
    """Options of the sampler ``n_sigma``."""

    n: float = option(1.0, "keep logits this many standard deviations below the largest", above=0)


class NSigma(Sampler):
    """Keeps the tokens whose logit is within n standard deviations of the largest (top-nσ, Tang et al. 2024)."""

    name = "n_sigma"
    Config = NSigmaConfig
    config: NSigmaConfig
    own_probabilities = True

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        score_NV = logits_NV.float()
        if self.greedy:
            return torch.nn.functional.one_hot(score_NV.argmax(-1), score_NV.shape[-1]).float()
        floor_N1 = score_NV.amax(-1, keepdim=True) - self.config.n * score_NV.std(-1, keepdim=True)
        score_NV = score_NV.masked_fill(score_NV < floor_N1, float("-inf"))
        return (score_NV / self.params.temperature).softmax(-1)
