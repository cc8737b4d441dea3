"""The feed-forward sub-layer of a block: a gated MLP, or a mixture of them of which every token has a few.

Legend: B requests, N rows of a request, K = B*N rows, M model dim, I MLP dim, E experts, A experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from spec_sdk.ops.host_reads import read
from spec_sdk.ops.linear import Projection

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class GatedMLP:
    """down(activation(gate(x)) * up(x)). ``gate_up`` is M → 2I, the gate's rows first; ``down`` is I → M."""

    gate_up: Projection
    down: Projection
    activation: Activation = "silu"
    data_dependent: ClassVar[str | None] = None
    """What makes the shapes of a call depend on the values in it, so that it cannot be captured or compiled."""

    @property
    def projections(self) -> list[Projection]:
        """Its linear layers."""
        return [self.gate_up, self.down]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., M]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        gate = F.silu(gate) if self.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self.down(gate * up)


class MixtureOfExperts:
    """E gated MLPs. A router chooses A of them for every token, and weights what they return.

    Every token gets what it was routed to, however many others go there. An expert is called once, with all its rows,
    and only if it has any: which have is read on the host, once a call.

    ``router_EM`` is in float32, as is the choice: logits that were rounded to bfloat16 would often tie. ``normalized``:
    the weights of a token's experts sum to 1; else they are its probabilities among all E. ``shared`` is for every
    token, under a weight of its own: the sigmoid of ``shared_gate_1M`` x.
    """

    data_dependent: ClassVar[str | None] = "mixture of experts"

    def __init__(
        self,
        router_EM: torch.Tensor,
        experts: Sequence[GatedMLP],
        per_token: int,
        normalized: bool,
        shared: GatedMLP | None = None,
        shared_gate_1M: torch.Tensor | None = None,
    ) -> None:
        self.router_EM = router_EM
        self.experts = tuple(experts)
        self.per_token = per_token
        self.normalized = normalized
        self.shared = shared
        self.shared_gate_1M = shared_gate_1M

    @property
    def projections(self) -> list[Projection]:
        """The linear layers of all experts, the shared one last."""
        mlps = (*self.experts, *([] if self.shared is None else [self.shared]))
        return [projection for mlp in mlps for projection in mlp.projections]

    def __call__(self, x_BNM: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., M]."""
        x_KM = x_BNM.flatten(0, -2)
        y_KM = self._routed(x_KM, *self.route(x_KM))
        if self.shared is not None and self.shared_gate_1M is not None:
            y_KM = y_KM + F.sigmoid(F.linear(x_KM, self.shared_gate_1M)) * self.shared(x_KM)
        return y_KM.view(x_BNM.shape)

    def route(self, x_KM: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of every row and their weights [K, A], the heaviest first."""
        weight_KA, chosen_KA = F.linear(x_KM.float(), self.router_EM).softmax(dim=-1).topk(self.per_token, dim=-1)
        if self.normalized:
            weight_KA = weight_KA / weight_KA.sum(dim=-1, keepdim=True)
        return chosen_KA, weight_KA

    def _routed(self, x_KM: torch.Tensor, chosen_KA: torch.Tensor, weight_KA: torch.Tensor) -> torch.Tensor:
        K, A = chosen_KA.shape
        chosen = chosen_KA.flatten()
        # the (row, expert) pairs, expert by expert
        order = chosen.argsort(stable=True)
        (count_E,) = read(torch.bincount(chosen, minlength=len(self.experts)))
        parts = zip(self.experts, torch.split(x_KM[order // A], count_E.tolist()), strict=True)
        y = torch.cat([expert(part) for expert, part in parts if len(part)])
        # back in the rows' order; each row's sum over its experts is in the order of their weights, on every device
        y_KAM = y[order.argsort()].view(K, A, -1)
        return (y_KAM * weight_KA[..., None]).sum(dim=1).to(x_KM.dtype)


FeedForward = GatedMLP | MixtureOfExperts
