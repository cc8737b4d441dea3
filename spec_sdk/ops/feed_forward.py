"""The feed-forward sub-layer of a block: an MLP, mostly gated, or a mixture of them of which every token has a few.

Legend: B requests, N rows of a request, K = B*N rows, M model dim, I MLP dim, E experts, A experts of a token, C groups
of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from spec_sdk.ops.host_reads import read
from spec_sdk.ops.linear import Projection

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "squared_relu"]
"""``clamped_swiglu``: of gpt-oss (arXiv:2508.10925, §2.3), where the gate's gain is 1.702 and both are within ±7.
``squared_relu`` (So et al. 2021, arXiv:2109.08668): of MLPs without gates.
"""

SWIGLU_GAIN, SWIGLU_LIMIT = 1.702, 7.0
Scoring = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class GatedMLP:
    """down(activation(gate(x)) * up(x)). ``gate_up`` is M → 2I, the gate's rows first; ``down`` is I → M.

    ``clamped_swiglu``, of gate and up within its limits: gate · sigmoid(1.702 gate) · (up + 1).
    """

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
        return self.down(activated(gate, up, self.activation))


@dataclass(frozen=True)
class SquaredReluMLP:
    """down(relu(up(x))²), without a gate. ``up`` is M → I, ``down`` I → M."""

    up: Projection
    down: Projection
    activation: ClassVar[Activation] = "squared_relu"
    data_dependent: ClassVar[str | None] = None
    """As of :class:`GatedMLP`."""

    @property
    def projections(self) -> list[Projection]:
        """Its linear layers."""
        return [self.up, self.down]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., M]."""
        return self.down(F.relu(self.up(x)).square())


MLP = GatedMLP | SquaredReluMLP


def activated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """What a gated MLP has between its matrices."""
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1
        return gate * torch.sigmoid(SWIGLU_GAIN * gate) * up
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return gate * up


@dataclass(frozen=True)
class Routing:
    """How a router's logits choose A = ``per_token`` experts for a token, and weight what they return.

    ``scored_by``: an expert's score is its probability among all E, or the sigmoid of its logit. Scores are weights;
    ``normalized``: they are divided by the sum of the token's, at least by ``least_sum``; ``scale`` multiplies them
    then.

    ``groups``: neighbouring experts are a group, of as many. The choice is made within the ``groups_of_token`` groups
    whose two best scores sum to the most (DeepSeek-V3, arXiv:2412.19437, §2.1.2).
    """

    per_token: int
    normalized: bool
    scored_by: Scoring = "softmax"
    scale: float = 1.0
    groups: int = 1
    groups_of_token: int = 1
    least_sum: float = 1e-20


class MixtureOfExperts:
    """E MLPs. A router chooses A of them for every token, and weights what they return.

    Every token gets what it was routed to, however many others go there. An expert is called once, with all its rows,
    and only if it has any: which have is read on the host, once a call.

    ``router_EM`` is in float32, as is the choice: logits that were rounded to bfloat16 would often tie. In float32 are
    also ``router_bias_E``, of its logits, and ``correction_E``, which is added to scores for the choice alone
    (DeepSeek-V3, §2.1.2). ``shared`` is for every token, where there is a ``shared_gate_1M`` under a weight of its own:
    the sigmoid of that · x. ``weight_E`` multiplies the weights of the chosen (Gemma 4).
    """

    data_dependent: ClassVar[str | None] = "mixture of experts"

    def __init__(
        self,
        router_EM: torch.Tensor,
        experts: Sequence[MLP],
        routing: Routing,
        shared: MLP | None = None,
        shared_gate_1M: torch.Tensor | None = None,
        correction_E: torch.Tensor | None = None,
        router_bias_E: torch.Tensor | None = None,
        weight_E: torch.Tensor | None = None,
    ) -> None:
        self.router_EM = router_EM
        self.experts = tuple(experts)
        self.routing = routing
        self.shared = shared
        self.shared_gate_1M = shared_gate_1M
        self.correction_E = correction_E
        self.router_bias_E = router_bias_E
        self.weight_E = weight_E

    @property
    def projections(self) -> list[Projection]:
        """The linear layers of all experts, the shared one last."""
        mlps = (*self.experts, *([] if self.shared is None else [self.shared]))
        return [projection for mlp in mlps for projection in mlp.projections]

    def __call__(self, x_BNM: torch.Tensor, router_input_BNM: torch.Tensor | None = None) -> torch.Tensor:
        """[..., M] → [..., M]. ``router_input_BNM``: what the router reads, if not the same."""
        x_KM = x_BNM.flatten(0, -2)
        y_KM = self._routed(x_KM, *self.route(x_KM if router_input_BNM is None else router_input_BNM.flatten(0, -2)))
        if self.shared is not None:
            shared_KM = self.shared(x_KM)
            if self.shared_gate_1M is not None:
                shared_KM = F.sigmoid(F.linear(x_KM, self.shared_gate_1M)) * shared_KM
            y_KM = y_KM + shared_KM
        return y_KM.view(x_BNM.shape)

    def route(self, x_KM: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of every row and their weights [K, A], the best first."""
        how, logit_KE = self.routing, F.linear(x_KM.float(), self.router_EM, self.router_bias_E)
        score_KE = logit_KE.sigmoid() if how.scored_by == "sigmoid" else logit_KE.softmax(dim=-1)
        choice_KE = score_KE if self.correction_E is None else score_KE + self.correction_E
        if how.groups > how.groups_of_token:
            choice_KE = self._within_best_groups(choice_KE)
        chosen_KA = _first_best(choice_KE, how.per_token)
        weight_KA = score_KE.gather(-1, chosen_KA)
        if how.normalized:
            weight_KA = weight_KA / weight_KA.sum(dim=-1, keepdim=True).clamp_min(how.least_sum)
        if self.weight_E is not None:
            weight_KA = weight_KA * self.weight_E[chosen_KA]
        return chosen_KA, weight_KA if how.scale == 1.0 else weight_KA * how.scale

    def _within_best_groups(self, choice_KE: torch.Tensor) -> torch.Tensor:
        """The same, −∞ in all groups but the best ones of each row."""
        choice_KCX = choice_KE.view(len(choice_KE), self.routing.groups, -1)
        group_KC = choice_KCX.topk(2, dim=-1).values.sum(dim=-1)
        best_KA = _first_best(group_KC, self.routing.groups_of_token)
        left_out_KC = torch.ones_like(group_KC, dtype=torch.bool).scatter_(-1, best_KA, False)
        return choice_KCX.masked_fill(left_out_KC[..., None], -torch.inf).flatten(1)

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


def _first_best(value_KX: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the largest values of each row [K, count]; of equal ones the first, on every device."""
    return value_KX.sort(dim=-1, descending=True, stable=True).indices[:, :count]


FeedForward = MLP | MixtureOfExperts
