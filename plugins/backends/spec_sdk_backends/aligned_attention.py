"""Launches attention that adds up keys by their numbers along a row's path (:mod:`aligned_attention_kernel`).

Legend: L layers, B requests, N rows, H query heads, G KV heads, R = H/G, D head dim, C capacity, T tree slots,
S cache slots; of parts, spans.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.types import PLAIN, AttentionSpec
from spec_sdk_backends.aligned_attention_kernel import (
    aligned_attention_kernel,
    join_spans_kernel,
    key_numbers_kernel,
)
from spec_sdk_backends.tree_attention import check_dtypes
from spec_sdk_backends.tree_attention_kernel import LOG2_E

TILE_ROWS = 16
JOINED_AT_ONCE = 16
LOOKED_AT_ONCE = 128
MOST_SLOTS = 32767
"""Of a tree: their numbers have 16 bits."""
MOST_PART_ELEMENTS = 1 << 26
"""Of partial results, 256 MiB in float32: rows that would have more are taken in several launches."""


@dataclass(frozen=True)
class Spans:
    """Keys of a block and of a span, which is whole blocks; warps and stages of a program. The same in every pass of a
    model: other sizes are another order of sums.
    """

    block: int
    span: int
    warps: int = 4
    stages: int = 3

    @staticmethod
    def choose(head_dim: int, dtype: torch.dtype) -> Spans:
        """By what a head is alone."""
        padded = max(64, triton.next_power_of_2(head_dim))
        # as many keys as three stages of K and V leave room for in 99 KiB of shared memory
        block = max(16, min(64, 16384 // (padded * dtype.itemsize)))
        return Spans(block, 256)


@dataclass(frozen=True)
class KeyNumbers:
    """The tree slots that each row of a pass sees, in the order of their numbers, ``path_BNT`` int16; how many keys it
    has, the prefix included, ``keys_BN`` int32.
    """

    path_BNT: torch.Tensor
    keys_BN: torch.Tensor

    @staticmethod
    def of(cache: PassCache) -> KeyNumbers:
        """Of the pass, made once for all of its layers. Nothing waits for the device. Raises ValueError for a tree of
        more slots than 16 bits can number.
        """
        if KeyNumbers not in cache.made:
            inputs = cache.inputs
            B, N, T = inputs.batch, inputs.width, inputs.slots
            if T > MOST_SLOTS:
                raise ValueError(f"a tree of {T} slots: attention in the order of positions numbers {MOST_SLOTS}")
            device = inputs.slot_B.device
            path_BNT = torch.empty((B, N, T), dtype=torch.int16, device=device)
            keys_BN = torch.empty((B, N), dtype=torch.int32, device=device)
            key_numbers_kernel[(N, B)](
                inputs.query_start_BN,
                inputs.key_start_BT,
                inputs.key_end_BT,
                inputs.prefix_B,
                inputs.write_at_B,
                inputs.live_B,
                path_BNT,
                keys_BN,
                N,
                T,
                inputs.query_start_BN.stride(0),
                inputs.key_end_BT.stride(0),
                BLOCK_T=LOOKED_AT_ONCE,
                num_warps=1,
            )
            cache.made[KeyNumbers] = KeyNumbers(path_BNT, keys_BN)
        found: KeyNumbers = cache.made[KeyNumbers]
        return found


def aligned_attention(
    q_LBNHD: torch.Tensor,
    cache: PassCache,
    first: int,
    spec: AttentionSpec = PLAIN,
    spans: Spans | None = None,
) -> torch.Tensor:
    """Attention of a pass's rows over the cache of L layers from layer ``first`` on: [L, B, N, H, D]; padding gets 0.

    A row's bits depend on its query, on the keys and values along its own path and on ``spans`` alone: not on whether
    they are committed, on other rows, nor on other requests. ``spans``: sizes other than :meth:`Spans.choose`'s. Waits
    for nothing. Raises :class:`~spec_sdk.errors.UserError` for a dtype or head dim without a kernel, ``ValueError`` for
    scores that are capped, for sinks and for trees of more than 32767 slots.
    """
    inputs = cache.inputs
    L, B, N, H, D = q_LBNHD.shape
    k_LSGCD, v_LSGCD = cache.layers(first, first + L)
    check_dtypes(q_LBNHD, k_LSGCD, v_LSGCD)
    if spec.softcap is not None or spec.sinks is not None:
        raise ValueError("attention in the order of positions has no form for capped scores, nor for sinks")
    out_LBNHD = torch.empty((L, B, N, H, D), dtype=q_LBNHD.dtype, device=q_LBNHD.device)
    if not out_LBNHD.numel():
        return out_LBNHD
    q_LBNHD = q_LBNHD if q_LBNHD.stride(-1) == 1 else q_LBNHD.contiguous()
    spans = spans or Spans.choose(D, q_LBNHD.dtype)
    G, C = k_LSGCD.shape[2:4]
    R, chain = H // G, inputs.kind == "chain"
    numbers = None if chain else KeyNumbers.of(cache)
    # tensors that are not read stand for those that there are none of
    path_BNT, keys_BN, T = q_LBNHD.view(torch.int16), inputs.slot_B, 0
    if numbers is not None:
        path_BNT, keys_BN, T = numbers.path_BNT, numbers.keys_BN, numbers.path_BNT.shape[2]
    heads = min(R, TILE_ROWS)
    most_spans = triton.cdiv(min(C, inputs.columns or C), spans.span)
    own_spans = 0 if chain else min(most_spans, triton.cdiv(T, spans.span) + 1)
    nodes = max(1, MOST_PART_ELEMENTS // (most_spans * L * B * H * D))
    block_d = max(16, triton.next_power_of_2(D))
    window = spec.window or 0
    for first_node in range(0, N, nodes):
        count = min(nodes, N - first_node)
        shared = triton.cdiv(count, TILE_ROWS // heads)
        part_SLBNHD = q_LBNHD.new_empty((most_spans, L, B, count, H, D), dtype=torch.float32)
        top_SLBNH, total_SLBNH = q_LBNHD.new_empty((2, most_spans, L, B, count, H), dtype=torch.float32).unbind(0)
        programs = shared * most_spans + count * own_spans
        aligned_attention_kernel[(programs, L * B * G * triton.cdiv(R, heads))](
            q_LBNHD,
            k_LSGCD,
            v_LSGCD,
            path_BNT,
            keys_BN,
            inputs.position_BN,
            inputs.slot_B,
            inputs.prefix_B,
            inputs.live_B,
            part_SLBNHD,
            top_SLBNH,
            total_SLBNH,
            *q_LBNHD.stride()[:4],
            *k_LSGCD.stride()[:4],
            *v_LSGCD.stride()[:4],
            inputs.position_BN.stride(0),
            B,
            N,
            T,
            first_node,
            count,
            most_spans,
            shared,
            own_spans,
            window,
            spec.scale_for(D) * LOG2_E,
            G=G,
            R=R,
            D=D,
            HEADS=heads,
            CHAIN=chain,
            # the numbers of 16 bits on the way to the keys make the compiler add up products of float32 in another
            # order: all forms have to look them up, or none
            BY_PATH=not chain or q_LBNHD.dtype == torch.float32,
            WINDOWED=spec.window is not None,
            BLOCK_K=spans.block,
            BLOCK_D=block_d,
            SPAN=spans.span,
            num_warps=spans.warps,
            num_stages=spans.stages,
            enable_fp_fusion=False,
        )
        join_spans_kernel[(count * H, L * B)](
            part_SLBNHD,
            top_SLBNH,
            total_SLBNH,
            keys_BN,
            inputs.position_BN,
            inputs.prefix_B,
            inputs.live_B,
            out_LBNHD,
            B,
            N,
            first_node,
            count,
            window,
            inputs.position_BN.stride(0),
            H=H,
            D=D,
            CHAIN=chain,
            WINDOWED=spec.window is not None,
            BLOCK_S=JOINED_AT_ONCE,
            BLOCK_D=block_d,
            SPAN=spans.span,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out_LBNHD
