"""What a block of a model with heads of different shapes has besides: experts beside its MLP, an input of its own, a
scale (Gemma 4).

Legend: B requests, N rows of a request, M model dim, I MLP dim, E experts, P numbers of a layer's input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.ops.feed_forward import MixtureOfExperts
from spec_sdk.ops.linear import Projection


@dataclass(frozen=True)
class ExpertsBesideMLP:
    """A mixture that reads the hidden state beside the block's MLP; what both give is added, each under a norm.

    ``router_gain_M``: of the norm before the router, with its scale in it.
    """

    mixture: MixtureOfExperts
    router_gain_M: torch.Tensor
    input_norm_M: torch.Tensor
    output_norm_M: torch.Tensor
    mlp_norm_M: torch.Tensor


@dataclass(frozen=True)
class LayerInput:
    """What a block makes of its own input: norm(out(gelu(gate(h)) ⊙ input)), to be added to h.

    ``gate`` is M → P, ``out`` P → M, ``norm_M`` the gain.
    """

    gate: Projection
    out: Projection
    norm_M: torch.Tensor

    def gated(self, h_BNM: torch.Tensor, input_BNP: torch.Tensor) -> torch.Tensor:
        """The same before the norm [B, N, M]."""
        return self.out(F.gelu(self.gate(h_BNM), approximate="tanh") * input_BNP)


@dataclass(frozen=True)
class VariedParts:
    """``scale``: what leaves the block is multiplied by. ``value_norm_D``: a gain of ones."""

    value_norm_D: torch.Tensor
    scale: float = 1.0
    experts: ExpertsBesideMLP | None = None
    layer_input: LayerInput | None = None

    @property
    def projections(self) -> list[Projection]:
        """Its linear layers."""
        of_experts = [] if self.experts is None else self.experts.mixture.projections
        of_input = [] if self.layer_input is None else [self.layer_input.gate, self.layer_input.out]
        return [*of_experts, *of_input]
