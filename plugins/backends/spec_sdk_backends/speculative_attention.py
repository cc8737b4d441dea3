"""Launches speculative flash decode: in one piece, or the prediction first and the rest later.

:func:`speculative_attention` is for one device: two launches, as plain flash decoding has, the prediction's programs
first in the grid. :func:`predict_part` and :func:`finish` are for two: the prediction is out after its own short
launches, and may be sent on while the rest runs. All shapes of launches and of memory follow from Python integers, so
that each can be captured in a CUDA graph; nothing waits for the device.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, C key slots of the cache view, P prefix
length, T tree slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.contracts import PartialAttention, SpeculativeAttention
from spec_sdk.ops import Ends
from spec_sdk_backends.speculative_attention_kernel import combine_speculation_kernel, speculative_split_kernel
from spec_sdk_backends.tree_attention import MAX_SPLITS, Tiling, check_tensors, choose_splits, combining, per_sequence
from spec_sdk_backends.tree_attention_kernel import LOG2_E

# A prediction is wanted soon: its splits may be short
LEAST_WINDOW_BLOCKS = 2
# Parts are combined in one of two forms, for so many or for MAX_SPLITS: one for every number of them would be compiled
# in the middle of requests
FEW_SLOTS = 4


Mask = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Ends of the tree slots; their starts and the queries' numbers, for a growing tree."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a pass in keys and key blocks; ``prefix`` is the longest of the batch as far as the host knows."""

    prefix: int
    ends: Ends
    slots: int
    tiling: Tiling
    row_blocks: int
    kv_programs: int

    @staticmethod
    def of(q_BNHD: torch.Tensor, k_BGCD: torch.Tensor, prefix: int | torch.Tensor, ends: Ends, slots: int) -> Shape:
        B, N, H, D = q_BNHD.shape
        G = k_BGCD.shape[1]
        tiling = Tiling.choose(N * (H // G), D, q_BNHD.dtype)
        longest = prefix if isinstance(prefix, int) else k_BGCD.shape[2] - slots
        return Shape(longest, ends, slots, tiling, triton.cdiv(N * (H // G), tiling.rows), B * G)

    @property
    def programs(self) -> int:
        return self.row_blocks * self.kv_programs

    @property
    def window_blocks(self) -> int:
        first = min(self.ends.first, self.prefix)
        last = min(self.ends.last, self.prefix - first)
        return sum(-(-keys // self.tiling.keys) for keys in (first, last, self.slots))

    @property
    def middle_blocks(self) -> int:
        return -(-max(0, self.prefix - self.ends.keys) // self.tiling.keys)


def speculative_attention(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    prefix: int | torch.Tensor,
    ends: int | Ends,
    key_start_BT: torch.Tensor | None = None,
    query_start_BN: torch.Tensor | None = None,
    splits: int | None = None,
    window_splits: int | None = None,
) -> SpeculativeAttention:
    """Attention of N tree nodes over all keys, and its prediction from both ends of the prefix.

    Keys, masks and prefix as :func:`~spec_sdk_backends.tree_attention.tree_attention` takes them, but ``prefix`` may
    also be an integer tensor [B], which is not checked against C; the tree slots that a query sees always belong to its
    window. With prefixes of at most ``ends.keys`` the window is everything, and
    prediction and result are equal to the bit. The norms come from the float32 values before they are rounded to q's
    dtype. ``splits``: programs that share the keys of a block of rows, of which ``window_splits`` also share the
    window; None chooses as plain flash decoding over the same keys would.

    Raises what ``tree_attention`` raises, and ``ValueError`` for an end without keys but the first, and for more than
    MAX_SPLITS splits.
    """
    _check(q_BNHD, k_BGCD, v_BGCD, key_end_BT, prefix, ends, key_start_BT, query_start_BN)
    shape = Shape.of(q_BNHD, k_BGCD, prefix, Ends.of(ends), key_end_BT.shape[-1])
    window, middle = shape.window_blocks, shape.middle_blocks
    if splits is None:
        splits = choose_splits(shape.programs, window + middle, q_BNHD.device, shape.tiling, q_BNHD.dtype)
    if not middle:
        window_splits, middle_splits = splits, 0
    else:
        middle_splits = splits
        if window_splits is None:
            window_splits = share_of_window(window, middle, splits)
        window_splits = min(window_splits, splits)
    B, N, H, D = q_BNHD.shape
    part_SBNHD, lse_SBNH = _parts(window_splits + middle_splits, q_BNHD)
    counter_BN = torch.empty((B, N), dtype=torch.int32, device=q_BNHD.device)
    if q_BNHD.numel():
        mask = (key_end_BT, key_start_BT, query_start_BN)
        parts = (part_SBNHD, lse_SBNH, counter_BN)
        _split(q_BNHD, k_BGCD, v_BGCD, mask, prefix, shape, *parts, window_splits, middle_splits)
    window_parts = (part_SBNHD[:window_splits], lse_SBNH[:window_splits], lse_SBNH)
    middle_parts = (part_SBNHD[window_splits:], lse_SBNH[window_splits:])
    return _exact(q_BNHD, "whole", window_parts, middle_parts, counter_BN)


def share_of_window(window_blocks: int, middle_blocks: int, splits: int) -> int:
    """How many of the ``splits`` begin with the window: its part of all blocks, rounded, and at least one.

    In long contexts that one has blocks to spare, and goes on with the middle.
    """
    return max(1, round(window_blocks * splits / (window_blocks + middle_blocks)))


def predict_part(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    prefix: int | torch.Tensor,
    ends: int | Ends,
    key_start_BT: torch.Tensor | None = None,
    query_start_BN: torch.Tensor | None = None,
    splits: int | None = None,
    slot_B: torch.Tensor | None = None,
) -> PartialAttention:
    """Attention over the window alone, float32: the prediction, for :func:`finish` and for whoever waits for it.

    Arguments as for :func:`speculative_attention`; ``splits`` programs share the window. ``slot_B``: in which slots of
    k and v [S, G, C, D] the sequences' keys lie, an integer tensor on the device; None: in their order. Of the softmax
    statistics only m + log(l) is known: m holds the log-sum-exp and l is 1 (0 where a query sees no key).
    """
    B, N, H, D = q_BNHD.shape
    # of a cache there may be more or fewer slots than sequences
    like = [x if slot_B is None else x[:1].expand(B, -1, -1, -1) for x in (k_BGCD, v_BGCD)]
    _check(q_BNHD, like[0], like[1], key_end_BT, prefix, ends, key_start_BT, query_start_BN)
    shape = Shape.of(q_BNHD, k_BGCD, prefix, Ends.of(ends), key_end_BT.shape[-1])
    if splits is None:
        splits = choose_splits(
            shape.programs, shape.window_blocks, q_BNHD.device, shape.tiling, q_BNHD.dtype, LEAST_WINDOW_BLOCKS
        )
    part_SBNHD, lse_SBNH = _parts(splits, q_BNHD)
    o_BNHD = torch.empty((B, N, H, D), dtype=torch.float32, device=q_BNHD.device)
    m_BNH, l_BNH = torch.empty_like(lse_SBNH[0]), torch.empty_like(lse_SBNH[0])
    if q_BNHD.numel():
        mask = (key_end_BT, key_start_BT, query_start_BN)
        _split(q_BNHD, k_BGCD, v_BGCD, mask, prefix, shape, part_SBNHD, lse_SBNH, None, splits, 0, slot_B)
        none = (part_SBNHD[:0], lse_SBNH)
        _combine("predict", (part_SBNHD, lse_SBNH, lse_SBNH), none, o_BNHD, m_BNH, l_BNH, *(lse_SBNH,) * 5)
    return PartialAttention(o_BNHD, m_BNH, l_BNH)


def finish(
    prediction: PartialAttention,
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    prefix: int | torch.Tensor,
    ends: int | Ends,
    splits: int | None = None,
    slot_B: torch.Tensor | None = None,
) -> SpeculativeAttention:
    """The rest: attention over the middle keys, the exact result, and the norms.

    ``prediction`` is contiguous float32, from :func:`predict_part` on the same keys, or any other computation of
    attention over the window. ``splits`` programs share the middle. ``slot_B`` as there.
    """
    B, N = q_BNHD.shape[:2]
    shape = Shape.of(q_BNHD, k_BGCD, prefix, Ends.of(ends), 0)
    middle = shape.middle_blocks
    if splits is None:
        splits = choose_splits(shape.programs, middle, q_BNHD.device, shape.tiling, q_BNHD.dtype)
    splits = splits if middle else 0
    part_SBNHD, lse_SBNH = _parts(splits, q_BNHD)
    new_counters = torch.empty if splits else torch.zeros
    counter_BN = new_counters((B, N), dtype=torch.int32, device=q_BNHD.device)
    if splits and q_BNHD.numel():
        _split(q_BNHD, k_BGCD, v_BGCD, None, prefix, shape, part_SBNHD, lse_SBNH, counter_BN, 0, splits, slot_B)
    window_parts = (prediction.o_BNHD[None], prediction.m_BNH[None], prediction.l_BNH[None])
    return _exact(q_BNHD, "finish", window_parts, (part_SBNHD, lse_SBNH), counter_BN)


def _check(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    prefix: int | torch.Tensor,
    ends: int | Ends,
    key_start_BT: torch.Tensor | None,
    query_start_BN: torch.Tensor | None,
) -> None:
    check_tensors(q_BNHD, k_BGCD, v_BGCD, key_end_BT, prefix, key_start_BT, query_start_BN)
    first, last = Ends.of(ends)
    if first < 0 or last < 1:
        raise ValueError(f"a window of the first {first} and the last {last} keys of the prefix")


def _parts(slots: int, q_BNHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for partial outputs [slots, B, N, H, D] and log-sum-exps [slots, B, N, H]."""
    part_SBNHD = torch.empty((slots, *q_BNHD.shape), dtype=torch.float32, device=q_BNHD.device)
    return part_SBNHD, torch.empty((slots, *q_BNHD.shape[:3]), dtype=torch.float32, device=q_BNHD.device)


def _split(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    mask: Mask | None,
    prefix: int | torch.Tensor,
    shape: Shape,
    part_SBNHD: torch.Tensor,
    lse_SBNH: torch.Tensor,
    counter_BN: torch.Tensor | None,
    window_splits: int,
    middle_splits: int,
    slot_B: torch.Tensor | None = None,
) -> None:
    """One launch of the split kernel: window, middle or both. Without a window, nobody reads the mask."""
    B, N, H, D = q_BNHD.shape
    G = k_BGCD.shape[1]
    nothing = lse_SBNH  # in place of tensors that this launch has none of
    key_end_BT, key_start_BT, query_start_BN = mask if mask is not None else (None, None, None)
    closed = key_start_BT is None or query_start_BN is None
    intervals = [nothing if x is None else per_sequence(x, B) for x in (key_start_BT, key_end_BT, query_start_BN)]
    speculative_split_kernel[(shape.row_blocks, B * G, max(window_splits, middle_splits))](
        q_BNHD,
        k_BGCD,
        v_BGCD,
        *intervals,
        nothing if isinstance(prefix, int) else prefix.contiguous(),
        nothing if slot_B is None else slot_B,
        part_SBNHD,
        lse_SBNH,
        nothing if counter_BN is None else counter_BN,
        *q_BNHD.stride(),
        *k_BGCD.stride(),
        *v_BGCD.stride(),
        *(x.stride(0) for x in intervals),
        B,
        N,
        shape.slots,
        prefix if isinstance(prefix, int) else 0,
        *shape.ends,
        window_splits,
        middle_splits,
        D**-0.5 * LOG2_E,
        G=G,
        R=H // G,
        D=D,
        WINDOW=window_splits > 0,
        MIDDLE=middle_splits > 0,
        ZERO_COUNTERS=counter_BN is not None,
        CLOSED=closed,
        PREFIX_PER_SEQUENCE=not isinstance(prefix, int),
        CACHED=slot_B is not None,
        BLOCK_M=shape.tiling.rows,
        BLOCK_K=shape.tiling.keys,
        BLOCK_D=shape.tiling.head_dim,
        num_warps=shape.tiling.warps,
        num_stages=shape.tiling.stages,
    )


def _exact(
    q_BNHD: torch.Tensor,
    stage: Literal["whole", "finish"],
    window: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    middle: tuple[torch.Tensor, torch.Tensor],
    counter_BN: torch.Tensor,
) -> SpeculativeAttention:
    """Both outputs and the norms, from the parts of window and middle."""
    predicted_BNHD = torch.empty(q_BNHD.shape, dtype=q_BNHD.dtype, device=q_BNHD.device)
    exact_BNHD = torch.empty_like(predicted_BNHD)
    difference_sq_BN = torch.empty(q_BNHD.shape[:2], dtype=torch.float32, device=q_BNHD.device)
    norm_sq_BN = torch.empty_like(difference_sq_BN)
    sums_BNH2 = torch.empty((*q_BNHD.shape[:3], 2), dtype=torch.float32, device=q_BNHD.device)
    if q_BNHD.numel():
        outputs = (exact_BNHD, sums_BNH2, difference_sq_BN, norm_sq_BN, counter_BN)
        _combine(stage, window, middle, predicted_BNHD, window[1], window[1], *outputs)
    return SpeculativeAttention(predicted_BNHD, exact_BNHD, difference_sq_BN, norm_sq_BN)


def _combine(
    stage: Literal["whole", "predict", "finish"],
    window: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    middle: tuple[torch.Tensor, torch.Tensor],
    predicted_BNHD: torch.Tensor,
    *outputs: torch.Tensor,
) -> None:
    """One launch of the combine kernel; tensors that the stage does not use may be any."""
    B, N, H, D = predicted_BNHD.shape
    window_slots, middle_slots = window[0].shape[0], middle[0].shape[0]
    if max(window_slots, middle_slots) > MAX_SPLITS:
        raise ValueError(f"{max(window_slots, middle_slots)} splits: 1 to {MAX_SPLITS} can be combined")
    block_w, block_s = (FEW_SLOTS if slots <= FEW_SLOTS else MAX_SPLITS for slots in (window_slots, middle_slots))
    block_d = max(16, triton.next_power_of_2(D))
    heads = triton.next_power_of_2(H)
    block_h, warps = combining(B * N * H, max(block_w, block_s) * block_d)
    block_h = min(block_h, heads)
    head_blocks = triton.cdiv(H, block_h)
    combine_speculation_kernel[(B * N * head_blocks,)](
        *window,
        *middle,
        predicted_BNHD,
        *outputs,
        B * N,
        window_slots,
        middle_slots,
        H=H,
        D=D,
        STAGE=stage,
        MIDDLE=middle_slots > 0,
        HEAD_BLOCKS=head_blocks,
        BLOCK_H=block_h,
        BLOCK_W=block_w,
        BLOCK_S=block_s,
        BLOCK_D=block_d,
        ALL_H=heads,
        num_warps=warps,
    )
