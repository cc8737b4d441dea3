"""Plain and speculative flash decode of one query block, on random keys and values.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, M model dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.contracts import SpeculativeAttention
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask


@dataclass(frozen=True)
class Shape:
    label: str
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @property
    def model_dim(self) -> int:
        return self.heads * self.head_dim


SHAPES = {
    "8b": Shape("Llama-3.1-8B: 32/8 heads of 128", 32, 8, 128, 14336),
    "smollm2": Shape("SmolLM2-135M: 9/3 heads of 64", 9, 3, 64, 1536),
}


@dataclass(frozen=True)
class Inputs:
    """One query block and one set of keys and values."""

    q_BNHD: torch.Tensor
    k_BGSD: torch.Tensor
    v_BGSD: torch.Tensor

    @staticmethod
    def random(shape: Shape, context: int, queries: int, device: torch.device, dtype: torch.dtype) -> Inputs:
        keys = context + queries
        q_BNHD = torch.randn(1, queries, shape.heads, shape.head_dim, device=device, dtype=dtype)
        k_BGSD, v_BGSD = torch.randn(2, 1, shape.kv_heads, keys, shape.head_dim, device=device, dtype=dtype)
        return Inputs(q_BNHD, k_BGSD, v_BGSD)

    @property
    def bytes(self) -> int:
        return 2 * self.k_BGSD.numel() * self.k_BGSD.element_size()

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q_BNHD, self.k_BGSD, self.v_BGSD


Attention = Callable[[Inputs], Any]


def over(sets: Sequence[Inputs], attention: Attention) -> Callable[[], Any]:
    """``attention`` of every set, one after the other; the last result."""

    def run() -> Any:
        for one in sets[:-1]:
            attention(one)
        return attention(sets[-1])

    return run


def sdpa(one: Inputs) -> torch.Tensor:
    """torch's own, as one would call it without a tree: a single query sees all keys."""
    q_BHND = one.q_BNHD.transpose(1, 2)
    return F.scaled_dot_product_attention(q_BHND, one.k_BGSD, one.v_BGSD, enable_gqa=True)


def worst_difference(exact_BNHD: torch.Tensor, plain_BNHD: torch.Tensor) -> float:
    """Largest difference of the exact results, relative to the largest value."""
    return float((exact_BNHD.float() - plain_BNHD.float()).abs().max() / plain_BNHD.float().abs().max())


def gpu_variants(context: int, sizes: Sequence[int], device: torch.device) -> dict[str, Attention]:
    """Name → attention of one set. With S: ``whole``, ``predict``, ``pieces`` (predict, then finish)."""
    from spec_sdk_backends.speculative_attention import finish, predict_part, speculative_attention
    from spec_sdk_backends.tree_attention import tree_attention

    end_T = torch.ones(1, dtype=torch.int32, device=device)

    def plain(one: Inputs) -> torch.Tensor:
        return tree_attention(*one.tensors, end_T, context)

    def whole(one: Inputs, size: int) -> SpeculativeAttention:
        return speculative_attention(*one.tensors, end_T, context, size)

    def predict(one: Inputs, size: int) -> Any:
        return predict_part(*one.tensors, end_T, context, size)

    def pieces(one: Inputs, size: int) -> SpeculativeAttention:
        return finish(predict(one, size), *one.tensors, context, size)

    variants: dict[str, Attention] = {"plain": plain, "plain again": plain, "sdpa": sdpa}
    for size in sizes:
        for name, variant in (("whole", whole), ("predict", predict), ("pieces", pieces)):
            variants[f"{name} {size}"] = functools.partial(variant, size=size)
    return variants


def cpu_variants(context: int, queries: int, sizes: Sequence[int]) -> dict[str, Attention]:
    """The torch reference: plain, the op, and what it replaces (``separate``: predict, then all keys once more)."""
    ops = Ops()
    end_N = [queries, *range(2, queries + 1)]
    mask = AttentionMask.tree(context, end_N, torch.device("cpu"))

    def plain(one: Inputs) -> torch.Tensor:
        return ops.tree_attention(*one.tensors, mask)

    def whole(one: Inputs, size: int) -> SpeculativeAttention:
        return ops.speculative_attention(*one.tensors, mask, size)

    def separate(one: Inputs, size: int) -> SpeculativeAttention:
        predicted_BNHD = ops.sink_attention(*one.tensors, mask, size).o_BNHD
        return SpeculativeAttention.measured(predicted_BNHD, plain(one), one.q_BNHD.dtype)

    variants: dict[str, Attention] = {"plain": plain, "plain again": plain}
    if queries == 1:
        variants["sdpa"] = sdpa
    for size in sizes:
        if context > 2 * size:
            variants[f"whole {size}"] = functools.partial(whole, size=size)
            variants[f"separate {size}"] = functools.partial(separate, size=size)
    return variants
