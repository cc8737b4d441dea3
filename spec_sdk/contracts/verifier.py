"""The contract of a verifier: which path of a scored tree to keep.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from spec_sdk.contracts.request import Request, Verdict
from spec_sdk.contracts.sampling_params import SamplingParams
from spec_sdk.guarantees import Guarantee
from spec_sdk.plugin import Plugin
from spec_sdk.tree import TokenTree


class Verifier(Plugin, ABC):
    """Decides which path of a scored tree to keep."""

    kind = "verifier"
    guarantee: ClassVar[Guarantee]
    chains_only: ClassVar[bool] = False
    """Whether it takes chains only, no trees with branches."""
    exact_when_greedy: ClassVar[bool] = False
    """Whether at temperature 0 it keeps the target's own choices, whatever it guarantees when sampling."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def guarantee_under(self, params: SamplingParams) -> Guarantee:
        """What this verifier guarantees with these sampling parameters (a sampled rule may be exact when greedy).

        Raises UserError for parameters that it cannot serve.
        """
        return "exact" if self.exact_when_greedy and params.temperature == 0 else self.guarantee

    @abstractmethod
    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """``logits_NV[i]`` are the target's logits for the token after node i, the repetition penalty applied."""
