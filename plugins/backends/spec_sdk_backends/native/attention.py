"""Which attention the native kernel computes: narrow passes over a cache in the rows' dtype, or in bfloat16.

Legend: g layers, B requests, N rows of a request, H query heads, G KV heads, D head dim, S slots, C capacity.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.rounded_pass_cache import RoundedPassCache
from spec_sdk.ops.types import AttentionSpec
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.structures import DTYPES, Cache, Pass, address

MOST_ROWS = 64
LONGEST_HEAD = 576
MOST_SHARED = 64
"""Query heads to a KV head."""
VECTOR = 16


def attends(q_gBNHD: torch.Tensor, k_gSGCD: torch.Tensor) -> bool:
    """Whether the kernel computes this attention."""
    H, D = q_gBNHD.shape[3:]
    return (
        takes(q_gBNHD)
        and k_gSGCD.dtype in (q_gBNHD.dtype, torch.bfloat16)
        and knows_heads(H, k_gSGCD.shape[2], D)
        and k_gSGCD[0, 0, 0].is_contiguous()
    )


def reads_in_place(cache: PassCache) -> bool:
    """Whether the kernels read and write a cache where it lies: in the dtype of the rows, or rounded to bfloat16."""
    return cache.in_place or isinstance(cache, RoundedPassCache)


def takes(q_gBNHD: torch.Tensor) -> bool:
    """Whether the kernel takes these queries, over keys that lie as it reads them."""
    _, B, N, H, D = q_gBNHD.shape
    return B * N <= MOST_ROWS and q_gBNHD.dtype in DTYPES and knows_heads(H, H, D) and not q_gBNHD.requires_grad


def knows_heads(heads: int, shared: int, dim: int) -> bool:
    """Whether the kernel takes heads of this shape."""
    return dim % VECTOR == 0 and dim <= LONGEST_HEAD and heads // shared <= MOST_SHARED


def attention(q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec) -> torch.Tensor:
    """What :meth:`spec_sdk.ops.Ops.cached_attention` returns."""
    g, B, N, H, D = q_gBNHD.shape
    k_gSGCD, v_gSGCD = cache.layers(first, first + g)
    storage, of_pass = Cache.of(k_gSGCD, v_gSGCD), Pass.of(cache.inputs)
    q_gBNHD = in_rows(q_gBNHD)
    o_gBNHD = torch.empty((g, B, N, H, D), dtype=q_gBNHD.dtype)
    sinks_H = spec.sinks_H(q_gBNHD.device)
    for i in range(g):
        library().spec_attention(
            DTYPES[q_gBNHD.dtype],
            H,
            k_gSGCD.shape[2],
            D,
            spec.scale_for(D),
            spec.softcap or 0.0,
            spec.window or 0,
            None if sinks_H is None else sinks_H.data_ptr(),
            address(of_pass),
            address(storage),
            i,
            q_gBNHD[i].data_ptr(),
            q_gBNHD.stride(2),
            o_gBNHD[i].data_ptr(),
            torch.get_num_threads(),
        )
    return o_gBNHD


def expanded(cache: PassCache, first: int, end: int) -> PassCache:
    """What a pass sees of layers ``first`` … ``end - 1`` of a cache that does not lie as kernels read it: their layers
    0 … in a cache that does.
    """
    parts = cache.inputs.parts
    seen = [cache.keys_values(part.index, first, end) for part in parts]
    (g, G, _, D), slots = seen[0][0].shape, max(part.slot for part in parts) + 1
    k_gSGCD, v_gSGCD = seen[0][0].new_empty((2, g, slots, G, max(k.shape[2] for k, _ in seen), D))
    for part, (k_gGKD, v_gGKD) in zip(parts, seen, strict=True):
        k_gSGCD[:, part.slot, :, : k_gGKD.shape[2]] = k_gGKD
        v_gSGCD[:, part.slot, :, : v_gGKD.shape[2]] = v_gGKD
    return PassCache(k_gSGCD, v_gSGCD, cache.inputs)


def in_rows(q_BNHD: torch.Tensor) -> torch.Tensor:
    """The same, of any layers before B, with a row's heads side by side, and rows one distance apart."""
    B, N, _, D = q_BNHD.shape[-4:]
    request, row, head, element = q_BNHD.stride()[-4:]
    regular = head == D and element == 1 and (B == 1 or request == N * row)
    return q_BNHD if regular else q_BNHD.contiguous()
