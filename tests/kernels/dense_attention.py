"""What the kernel is compared with: attention in float64 by a dense mask that follows parents, not intervals.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, P prefix, T tree slots.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from spec_sdk.ops import PLAIN, AttentionSpec

TOLERANCE = 5e-5 if torch.cuda.is_available() else 1e-5
"""Largest :func:`relative_error` of a kernel on float32.

The interpreter multiplies in float32. Compiled, a product is three of tf32 on tensor cores, which cut off where they
add, and 2^x is the hardware's approximation. Emulated on random attention that is 2e-6 at most, and one product of tf32
in place of three, the mistake to catch, 5e-4 at least: the tolerance lies between.
"""


def dense_attention(
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    visible_NS: torch.Tensor,
    spec: AttentionSpec = PLAIN,
) -> torch.Tensor:
    """Attention in float64, [B, N, H, D]; rows of ``visible_NS`` without a True give 0."""
    R = q_BNHD.shape[2] // k_BGSD.shape[1]
    q_BHND = q_BNHD.double().transpose(1, 2)
    k_BHSD, v_BHSD = (x.double().repeat_interleave(R, dim=1) for x in (k_BGSD, v_BGSD))
    score_BHNS = (q_BHND @ k_BHSD.transpose(-1, -2)) * (spec.scale or q_BNHD.shape[-1] ** -0.5)
    if spec.softcap is not None:
        score_BHNS = spec.softcap * torch.tanh(score_BHNS / spec.softcap)
    score_BHNS = score_BHNS.masked_fill(~visible_NS, float("-inf"))
    if spec.sinks is not None:
        sink_BHN1 = score_BHNS.new_tensor(spec.sinks)[:, None, None].expand(*score_BHNS.shape[:-1], 1)
        score_BHNS = torch.cat((score_BHNS, sink_BHN1), -1)
    weight_BHNS = score_BHNS.softmax(-1)[..., : k_BHSD.shape[2]].nan_to_num(0.0)
    return (weight_BHNS @ v_BHSD).transpose(1, 2)


def ancestors(parents: list[int], prefix: int) -> torch.Tensor:
    """Visibility [T, P + T]: the whole prefix, the node itself and every node on the way to its root (parent -1)."""
    T = len(parents)
    visible_TS = torch.zeros(T, prefix + T, dtype=torch.bool)
    visible_TS[:, :prefix] = True
    for node in range(T):
        walker = node
        while walker >= 0:
            visible_TS[node, prefix + walker] = True
            walker = parents[walker]
    return visible_TS


def in_window(visible_NS: torch.Tensor, prefix: int, depth_T: list[int], window: int | None) -> torch.Tensor:
    """What a window leaves of [N, P + T], for the last N of the nodes at depths ``depth_T`` behind the prefix."""
    if window is None:
        return visible_NS
    position_S = torch.tensor([*range(prefix), *(prefix + depth for depth in depth_T)])
    return visible_NS & (position_S[-len(visible_NS) :, None] - position_S < window)


def depths(parents: list[int]) -> list[int]:
    """How many nodes are above every node."""
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    return depth


def ends(parents: list[int]) -> list[int]:
    """End of every node's subtree, for a tree in pre-order."""
    end_N = list(range(1, len(parents) + 1))
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            end_N[parents[node]] = max(end_N[parents[node]], end_N[node])
    return end_N


def chain(nodes: int) -> list[int]:
    """Every node under the one before."""
    return list(range(-1, nodes - 1))


def star(nodes: int) -> list[int]:
    """Every node under the first."""
    return [-1] + [0] * (nodes - 1)


def wide_forest(nodes: int, depth: int = 5) -> list[int]:
    """Chains of ``depth`` nodes side by side under one root."""
    return [-1] + [0 if (node - 1) % depth == 0 else node - 1 for node in range(1, nodes)]


def random_tree(nodes: int, seed: int) -> list[int]:
    """Pre-order: the next node goes under any node of the path to the last one."""
    generator = random.Random(seed)
    parents, path = [-1], [0]
    for node in range(1, nodes):
        del path[generator.randint(max(1, len(path) - 6), len(path)) :]
        parents.append(path[-1])
        path.append(node)
    return parents


@dataclass(frozen=True)
class Case:
    """Queries, keys and values of a pass; the keys are a view into a longer cache whose other slots hold NaN."""

    q_BNHD: torch.Tensor
    k_BGSD: torch.Tensor
    v_BGSD: torch.Tensor


def case(
    batch: int, queries: int, kv_heads: int, group: int, head_dim: int, keys: int, device: torch.device, seed: int = 0
) -> Case:
    """Standard normal tensors in float32."""
    generator = torch.Generator().manual_seed(seed)

    def cache() -> torch.Tensor:
        whole = torch.full((batch, kv_heads, keys + 37, head_dim), float("nan"))
        whole[:, :, :keys] = torch.randn(batch, kv_heads, keys, head_dim, generator=generator)
        return whole.to(device)[:, :, :keys]

    q_BNHD = torch.randn(batch, queries, kv_heads * group, head_dim, generator=generator)
    return Case(q_BNHD.to(device), cache(), cache())


def relative_error(given: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected magnitude; NaN where the given tensor holds one."""
    expected = expected.cpu()
    return float((given.double().cpu() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
