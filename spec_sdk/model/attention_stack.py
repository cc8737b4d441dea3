"""The attention weights of all layers, one tensor per kind: a group of consecutive layers is a slice of it.

The layers' own weights (:class:`~spec_sdk.model.decoder.BlockWeights`) are views into the same memory, so a group's
stacked weights cost nothing, and a layer run alone computes what it always did.

Legend: L layers, g layers of a run, K rows (batch times tokens), M model dim, H query heads, G KV heads, D head dim,
X = (H + 2G)*D, Y = H*D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.config import ModelConfig


@dataclass(frozen=True)
class AttentionStack:
    """Input-norm gains, fused QKV, QK-norm gains and output projections of L layers; biases and QK norms may be absent.

    Every layer keeps its own gain: it cannot be folded into the weights without a second copy of them.
    """

    input_norm_LM: torch.Tensor
    qkv_LXM: torch.Tensor
    qkv_bias_LX: torch.Tensor | None
    q_norm_LD: torch.Tensor | None
    k_norm_LD: torch.Tensor | None
    output_LMY: torch.Tensor
    output_bias_LM: torch.Tensor | None

    @staticmethod
    def empty(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> AttentionStack:
        """Memory for the weights of a model of this shape, to be filled layer by layer."""
        L, M, D = config.num_layers, config.hidden_size, config.head_dim
        X, Y = (config.num_heads + 2 * config.num_kv_heads) * D, config.num_heads * D

        def memory(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        return AttentionStack(
            input_norm_LM=memory(L, M),
            qkv_LXM=memory(L, X, M),
            qkv_bias_LX=memory(L, X) if config.qkv_bias else None,
            q_norm_LD=memory(L, D) if config.qk_norm else None,
            k_norm_LD=memory(L, D) if config.qk_norm else None,
            output_LMY=memory(L, M, Y),
            output_bias_LM=memory(L, M) if config.o_bias else None,
        )

    def layers(self, first: int, end: int) -> AttentionStack:
        """Layers ``first`` … ``end - 1``: views, no copies."""

        def part(weights: torch.Tensor | None) -> torch.Tensor | None:
            return None if weights is None else weights[first:end]

        return AttentionStack(
            input_norm_LM=self.input_norm_LM[first:end],
            qkv_LXM=self.qkv_LXM[first:end],
            qkv_bias_LX=part(self.qkv_bias_LX),
            q_norm_LD=part(self.q_norm_LD),
            k_norm_LD=part(self.k_norm_LD),
            output_LMY=self.output_LMY[first:end],
            output_bias_LM=part(self.output_bias_LM),
        )

    @property
    def depth(self) -> int:
        """Number of layers L."""
        return self.input_norm_LM.shape[0]

    def qkv(self, x_KM: torch.Tensor) -> torch.Tensor:
        """Every layer's QKV projection of one normalised input, under that layer's gain: [g, K, X]."""
        return products(x_KM * self.input_norm_LM[:, None], self.qkv_LXM, self.qkv_bias_LX)

    def output(self, o_gKY: torch.Tensor) -> torch.Tensor:
        """Every layer's output projection of its own attention [g, K, M]."""
        return products(o_gKY, self.output_LMY, self.output_bias_LM)


def products(x_gKI: torch.Tensor, weight_gOI: torch.Tensor, bias_gO: torch.Tensor | None) -> torch.Tensor:
    """``linear`` of every layer in one batched product [g, K, O]."""
    if bias_gO is None:
        return torch.bmm(x_gKI, weight_gOI.transpose(1, 2))
    return torch.baddbmm(bias_gO[:, None], x_gKI, weight_gOI.transpose(1, 2))


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
