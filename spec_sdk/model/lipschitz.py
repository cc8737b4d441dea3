"""How much a decoder's sub-layers stretch a small change of the hidden state: the constants of ALSpec's Appendix A.

All are estimates, taken at one token of the run: the largest singular value of a sub-layer's Jacobian there, by a few
steps of power iteration, which approaches it from below. A true Lipschitz constant holds everywhere and is larger.

Legend: B batch, N tokens, H query heads, G KV heads, R = H/G, D head dim, M model dim, S keys that a token sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.ops.pass_inputs import PassPart

STEPS = 4
"""Of power iteration; each costs about two passes over the sub-layer's weights."""


@dataclass(frozen=True)
class LipschitzEstimate:
    """Per layer: ``mlp`` is α (norm and MLP), ``attention`` is f(R)·β (norm, attention over the prefix, output
    projection), ``output`` is ‖W_O‖, which carries an error from the heads' space to the residual stream's.
    """

    mlp: tuple[float, ...]
    attention: tuple[float, ...]
    output: tuple[float, ...]


@dataclass(frozen=True)
class TokenStates:
    """Where to estimate: one token's states [1, 1, M], entering each layer and after its attention was added.

    Without the latter they are made from the former, with exact attention.
    """

    entering: list[torch.Tensor]
    attended: list[torch.Tensor]


def estimate(decoder: Decoder, states: TokenStates, work: ForwardPass, part: PassPart) -> LipschitzEstimate:
    """The constants of every layer at the root of one request in ``work``, whose prefix must still be in the cache.

    Costs as much as about a dozen passes over one token.
    """
    own = slice(part.index, part.index + 1)
    first = replace(work, rotations=work.rotations_of(own, slice(1)))

    def mlp(layer: int, h_BNM: torch.Tensor) -> torch.Tensor:
        return decoder.post_attention(layer, h_BNM, torch.zeros_like(h_BNM)) - h_BNM

    def attention(layer: int, h_BNM: torch.Tensor) -> torch.Tensor:
        q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, first)
        k_BGKD, v_BGKD = first.cache.keys_values(part.index, layer, layer + 1)
        spec, prefix = decoder.kinds[layer].attention, part.mask.prefix
        seen = slice(0 if spec.window is None else max(0, prefix + 1 - spec.window), prefix)
        k_BGSD = torch.cat((k_BGKD[:, :, seen], k_BNGD.transpose(1, 2)), 2)
        v_BGSD = torch.cat((v_BGKD[:, :, seen], v_BNGD.transpose(1, 2)), 2)
        B, N, H, D = q_BNHD.shape
        q_BGRD = q_BNHD.view(B, k_BGSD.shape[1], -1, D)
        score_BGRS = (q_BGRD @ k_BGSD.mT * spec.scale_for(D)).float()
        if spec.softcap is not None:
            score_BGRS = torch.tanh(score_BGRS / spec.softcap) * spec.softcap
        weight_BGRS = torch.softmax(score_BGRS, dim=-1).to(v_BGSD.dtype)
        return decoder.project(layer, (weight_BGRS @ v_BGSD).reshape(B, N, H, D))

    def output(layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
        return decoder.project(layer, o_BNHD)

    with torch.no_grad():
        attended = states.attended or [h + attention(i, h) for i, h in enumerate(states.entering)]
    c = decoder.config
    heads_BNHD = torch.zeros((1, 1, c.num_heads, c.head_dim), device=decoder.device, dtype=decoder.dtype)
    layers = range(decoder.layers)
    return LipschitzEstimate(
        mlp=tuple(stretch(lambda h, i=i: mlp(i, h), attended[i]) for i in layers),  # type: ignore[misc]
        attention=tuple(stretch(lambda h, i=i: attention(i, h), states.entering[i]) for i in layers),  # type: ignore[misc]
        output=tuple(stretch(lambda o, i=i: output(i, o), heads_BNHD) for i in layers),  # type: ignore[misc]
    )


def stretch(function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor, steps: int = STEPS) -> float:
    """About the largest singular value of the Jacobian of ``function`` at ``at``; never more than it."""
    with torch.enable_grad():
        x = at.detach().clone().requires_grad_()
        y = function(x)
        w = torch.zeros_like(y, requires_grad=True)
        # linear in w: its derivative by w gives the Jacobian's product with a vector
        (back,) = torch.autograd.grad(y, x, w, create_graph=True)
        direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        largest = torch.zeros((), device=x.device)
        for _ in range(steps):
            direction = direction / direction.float().norm().clamp_min(1e-30).to(direction.dtype)
            (forward,) = torch.autograd.grad(back, w, direction, retain_graph=True)
            largest = torch.maximum(largest, forward.float().norm())
            (direction,) = torch.autograd.grad(y, x, forward, retain_graph=True)
    return float(largest)


class EstimateOfRun:
    """One estimate for all requests of a run, made when it is first asked for."""

    def __init__(self) -> None:
        self._made: LipschitzEstimate | None = None

    def __call__(self, decoder: Decoder, states: TokenStates, work: ForwardPass, part: PassPart) -> LipschitzEstimate:
        if self._made is None:
            self._made = estimate(decoder, states, work, part)
        return self._made
