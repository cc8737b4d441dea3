"""What attention to latents has beside the projections of Q and of its output (DeepSeek-V2, arXiv:2405.04434, §2.1).

Legend: B requests, N rows of a request, K = B*N rows, M model dim, H query heads, X dims of a head of Q, P those of
them without rotary positions, R dims of a latent, D = R + rotated dims, V dims of a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.ops.linear import Projection, ProjectionStack


@dataclass(frozen=True)
class LatentProjections:
    """``latents`` is M → D: a token's latent, and behind it the rotated dims of the key that all heads share.

    ``latent_norm_R``: of a latent; ``query_norm``: of that of Q, where ``queries`` makes Q [H·X] of it; both None where
    Q is made of the hidden state. ``keys``: of each head P → R, what makes K of latents, transposed and applied to Q;
    ``values``: of each head R → V.
    """

    latents: Projection
    latent_norm_R: torch.Tensor
    query_norm: torch.Tensor | None
    queries: Projection | None
    keys: ProjectionStack
    values: ProjectionStack

    @property
    def projections(self) -> list[Projection]:
        """All linear layers, those of heads one by one."""
        of_heads = [stack[head] for stack in (self.keys, self.values) for head in range(len(stack))]
        return [self.latents, *([] if self.queries is None else [self.queries]), *of_heads]


def by_head(stack: ProjectionStack, x_BNHI: torch.Tensor) -> torch.Tensor:
    """Every head under its own projection: [B, N, H, I] → [B, N, H, O]."""
    y_HKO = stack(x_BNHI.flatten(0, 1).transpose(0, 1))
    return y_HKO.transpose(0, 1).reshape(*x_BNHI.shape[:3], y_HKO.shape[-1])
