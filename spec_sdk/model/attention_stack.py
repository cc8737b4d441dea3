"""The attention weights of all layers, one stack per kind: a group of consecutive layers is a slice of it.

The layers' own weights (:class:`~spec_sdk.model.decoder.BlockWeights`) lie in the same memory, so a group's stacked
weights cost nothing, and a layer run alone computes what it always did.

Legend: L layers, g layers of a run, K rows (batch times tokens), M model dim, D head dim, X and Y dims of all heads
of Q, K and V, and of Q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.ops.linear import ProjectionStack


@dataclass(frozen=True)
class AttentionStack:
    """Input-norm gains, fused QKV, QK-norm gains and output projections of L layers; norms may be absent.

    Every layer keeps its own gain: it cannot be folded into the weights without a second copy of them.
    """

    input_norm_LM: torch.Tensor | None
    qkv_projections: ProjectionStack
    q_norm_LD: torch.Tensor | None
    k_norm_LD: torch.Tensor | None
    output_projections: ProjectionStack

    def layers(self, first: int, end: int) -> AttentionStack:
        """Layers ``first`` … ``end - 1``: no copies."""

        def part(gains: torch.Tensor | None) -> torch.Tensor | None:
            return None if gains is None else gains[first:end]

        return AttentionStack(
            input_norm_LM=part(self.input_norm_LM),
            qkv_projections=self.qkv_projections.layers(first, end),
            q_norm_LD=part(self.q_norm_LD),
            k_norm_LD=part(self.k_norm_LD),
            output_projections=self.output_projections.layers(first, end),
        )

    @property
    def depth(self) -> int:
        """Number of layers L."""
        return len(self.qkv_projections)

    def qkv(self, x_KM: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Every layer's QKV projection of one normalised input, under that layer's gain if it has one: [g, K, X].

        ``dtype`` is that of the projections; input and gains may be wider.
        """
        if self.input_norm_LM is None:
            return self.qkv_projections(x_KM.to(dtype).expand(self.depth, -1, -1))
        return self.qkv_projections((x_KM * self.input_norm_LM[:, None]).to(dtype))

    def output(self, o_gKY: torch.Tensor) -> torch.Tensor:
        """Every layer's output projection of its own attention [g, K, M]."""
        return self.output_projections(o_gKY)


def runs(sources: Sequence[int]) -> list[tuple[int, int]]:
    """``sources`` (layers of a stack) as maximal runs of consecutive layers, each (first, end).

    >>> runs([1, 2, 7, 8, 9])
    [(1, 3), (7, 10)]
    """
    found: list[tuple[int, int]] = []
    for layer in sources:
        if found and found[-1][1] == layer:
            found[-1] = (found[-1][0], layer + 1)
        else:
            found.append((layer, layer + 1))
    return found
