"""Speculative flash decode in Triton (ALSpec, §4.1 and App. B): the prediction is a part of the exact result.

The keys of a query are its *window* (the first and the last ``size`` keys of the committed prefix, and the tree slots
that it sees) and the *middle* (all others). Attention over the window is the prediction Â; merged with attention over
the middle by the rule of the online softmax it is the exact A. So predicting reads nothing twice.

``speculative_split_kernel`` is flash decoding: programs share the keys, each writes its normalised output and
log-sum-exp. Programs of the window come first in the grid and take from the middle only what makes their load that of
the others, so that a launch has as many programs, with as many key blocks each, as plain flash decoding over the same
keys. ``combine_speculation_kernel`` merges the window's parts to Â, all parts to A, and sums ‖Â − A‖² and ‖A‖² of a
query over its heads. With o and e the outputs and log-sum-exps of window (w) and middle (m), and s the middle's
share exp(e_m)/(exp(e_w) + exp(e_m)):

    Â = o_w,   A = (1 − s) o_w + s o_m,   Â − A = s (o_w − o_m)

The last form has no cancellation of its own, and where there is no middle, s = 0 and Â = A to the bit.

The sum over heads crosses programs. Each writes its heads' sums and counts itself in with an integer atomic; the last
one of a query adds them up in the order of the heads. So the norms need no launch and no clearing of memory (the
split kernel zeroes the counters), and are the same on every run.

Bytes moved from and to device memory, per sequence, with e bytes per element, M rows of a block, W and S splits of
window and middle: queries 2*N*H*D*e; keys and values 2*G*D*e*(P + visited tree slots) for each of the ceil(N*R/M) row
blocks; the mask 4*T to 8*T + 4*N for each row block; parts 2*(W + S)*N*H*(D + 1)*4; results 2*N*H*D*e; norms
16*N*H. Plain flash decoding with S splits: the same without W, one result and the norms.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, P prefix length, T tree slots; in the
kernels M rows of a block, K keys of a block, D head dim padded to a power of two, S slots of parts, H heads of a block.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.tree_attention_kernel import _attend, _merge

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _store_part(part_ptr, lse_ptr, slot, rows, row_M, real_M, m_M, l_M, acc_MD, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Normalised output and base-2 log-sum-exp (-inf, and output 0, where no key was seen) into one slot of parts."""
    d_D = tl.arange(0, BLOCK_D)
    safe_l_M = tl.where(l_M == 0.0, 1.0, l_M)
    part_row_M = slot.to(tl.int64) * rows + row_M
    tl.store(
        part_ptr + part_row_M[:, None] * D + d_D[None, :],
        acc_MD / safe_l_M[:, None],
        mask=real_M[:, None] & (d_D[None, :] < D),
    )
    tl.store(lse_ptr + part_row_M, tl.where(l_M == 0.0, float("-inf"), m_M + tl.log2(safe_l_M)), mask=real_M)


@triton.jit(
    # as for the tree attention kernel
    do_not_specialize=[
        "B", "N", "T", "P", "first", "last", "window_splits", "middle_splits", "stride_start_b", "stride_end_b",
        "stride_query_b",
    ],
    do_not_specialize_on_alignment=["key_start_ptr", "key_end_ptr", "query_start_ptr", "prefix_ptr", "slot_ptr"],
)  # fmt: skip
def speculative_split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    key_start_ptr,
    key_end_ptr,
    query_start_ptr,
    prefix_ptr,
    slot_ptr,
    part_ptr,
    lse_ptr,
    counter_ptr,
    stride_qb,
    stride_qn,
    stride_qh,
    stride_qd,
    stride_kb,
    stride_kg,
    stride_kc,
    stride_kd,
    stride_vb,
    stride_vg,
    stride_vc,
    stride_vd,
    stride_start_b,
    stride_end_b,
    stride_query_b,
    B,
    N,
    T,
    P,
    first,
    last,
    window_splits,
    middle_splits,
    scale_log2,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    MIDDLE: tl.constexpr,
    ZERO_COUNTERS: tl.constexpr,
    CLOSED: tl.constexpr,
    PREFIX_PER_SEQUENCE: tl.constexpr,
    CACHED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Rows ``program_id(0)``, sequence and KV head ``program_id(1)``, split ``program_id(2)``.

    With WINDOW, split i < ``window_splits`` shares the window and writes slot i. With MIDDLE, split i <
    ``middle_splits`` has a share of the middle and writes slot ``window_splits + i`` (``window_splits`` is 0 without
    WINDOW, and at most ``middle_splits`` with both). ``part`` is [slots, B, N, H, D] and ``lse`` (base 2) [slots, B,
    N, H], both float32. ZERO_COUNTERS: ``counter`` [B, N] int32 is set to 0.
    CACHED: sequence b's keys lie in slot ``slot[b]`` of k and v.
    """
    b = (tl.program_id(1) // G).to(tl.int64)
    g = (tl.program_id(1) % G).to(tl.int64)
    split = tl.program_id(2)
    row_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real_M = row_M < N * R
    node_M = row_M // R
    head_M = g * R + row_M % R
    d_D = tl.arange(0, BLOCK_D)
    if ZERO_COUNTERS:  # noqa: SIM102 (one is known when compiling, the other is not)
        if (split == 0) & (g == 0):
            tl.store(counter_ptr + b * N + node_M, tl.zeros([BLOCK_M], tl.int32), mask=real_M & (row_M % R == 0))

    q_row_M = node_M.to(tl.int64) * stride_qn + head_M * stride_qh
    q_MD = tl.load(
        q_ptr + b * stride_qb + q_row_M[:, None] + d_D[None, :] * stride_qd,
        mask=real_M[:, None] & (d_D[None, :] < D),
        other=0.0,
    )
    prefix = P
    if PREFIX_PER_SEQUENCE:
        prefix = tl.load(prefix_ptr + b).to(tl.int32)
    first_end = tl.minimum(first, prefix)
    last_start = tl.maximum(first_end, prefix - last)
    first_blocks = tl.cdiv(first_end, BLOCK_K)
    ends_blocks = first_blocks + tl.cdiv(prefix - last_start, BLOCK_K)
    middle_blocks = tl.cdiv(last_start - first_end, BLOCK_K)
    slot = b
    if CACHED:
        slot = tl.load(slot_ptr + b).to(tl.int64)
    k_ptr += slot * stride_kb + g * stride_kg
    v_ptr += slot * stride_vb + g * stride_vg
    rows = (B * N).to(tl.int64) * (G * R)
    out_row_M = (b * N + node_M) * (G * R) + head_M
    m_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_M = tl.zeros([BLOCK_M], tl.float32)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    # blocks of the middle that bring a window program up to the load of the others
    extra = 0
    if WINDOW:
        if CLOSED:
            # every slot is a query's candidate, and the last N slots are the queries
            query_M = node_M + (T - N)
        else:
            query_M = tl.load(query_start_ptr + b * stride_query_b + node_M, mask=real_M, other=0).to(tl.int32)
        first_query = tl.min(tl.where(real_M, query_M, 2147483647), 0)
        last_query = tl.max(tl.where(real_M, query_M, -1), 0)
        slots = T
        if CLOSED:
            slots = tl.minimum(T, last_query + 1)
        window_blocks = ends_blocks + tl.cdiv(slots, BLOCK_K)
        if MIDDLE:
            most = tl.cdiv(window_blocks, window_splits)
            even = tl.cdiv(window_blocks + middle_blocks, middle_splits)
            extra = tl.maximum(even - most, 0)
            if window_splits == middle_splits:
                extra = tl.cdiv(middle_blocks, window_splits)
        if split < window_splits:
            low = split * window_blocks // window_splits
            high = (split + 1) * window_blocks // window_splits
            for block in range(low, tl.minimum(high, ends_blocks)):
                in_last = block >= first_blocks
                base = tl.where(in_last, last_start + (block - first_blocks) * BLOCK_K, block * BLOCK_K)
                slot_K = base + tl.arange(0, BLOCK_K)
                exists_K = slot_K < tl.where(in_last, prefix, first_end)
                visible_MK = tl.broadcast_to(exists_K[None, :], (BLOCK_M, BLOCK_K))
                m_M, l_M, acc_MD = _attend(
                    q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, slot_K, exists_K, visible_MK,
                    m_M, l_M, acc_MD, scale_log2, D, BLOCK_D,
                )  # fmt: skip
            for block in range(tl.maximum(low, ends_blocks), high):
                tree_slot_K = (block - ends_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
                exists_K = tree_slot_K < T
                end_K = tl.load(key_end_ptr + b * stride_end_b + tree_slot_K, mask=exists_K, other=0).to(tl.int32)
                if CLOSED:
                    start_K = tree_slot_K
                else:
                    start_K = tl.load(
                        key_start_ptr + b * stride_start_b + tree_slot_K, mask=exists_K, other=2147483647
                    ).to(tl.int32)  # fmt: skip
                if (tl.min(start_K, 0) <= last_query) & (tl.max(end_K, 0) > first_query):
                    visible_MK = (start_K[None, :] <= query_M[:, None]) & (query_M[:, None] < end_K[None, :])
                    m_M, l_M, acc_MD = _attend(
                        q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, prefix + tree_slot_K,
                        exists_K, visible_MK, m_M, l_M, acc_MD, scale_log2, D, BLOCK_D,
                    )  # fmt: skip
            _store_part(part_ptr, lse_ptr, split, rows, out_row_M, real_M, m_M, l_M, acc_MD, D, BLOCK_D)
            m_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
            l_M = tl.zeros([BLOCK_M], tl.float32)
            acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    if MIDDLE:
        by_window = tl.minimum(window_splits * extra, middle_blocks)
        left = middle_blocks - by_window
        others = tl.maximum(middle_splits - window_splits, 1)
        if split < window_splits:
            low = tl.minimum(split * extra, middle_blocks)
            high = tl.minimum(low + extra, middle_blocks)
        else:
            low = by_window + (split - window_splits) * left // others
            high = by_window + (split - window_splits + 1) * left // others
        for base in range(first_end + low * BLOCK_K, tl.minimum(first_end + high * BLOCK_K, last_start), BLOCK_K):
            slot_K = base + tl.arange(0, BLOCK_K)
            exists_K = slot_K < last_start
            visible_MK = tl.broadcast_to(exists_K[None, :], (BLOCK_M, BLOCK_K))
            m_M, l_M, acc_MD = _attend(
                q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, slot_K, exists_K, visible_MK,
                m_M, l_M, acc_MD, scale_log2, D, BLOCK_D,
            )  # fmt: skip
        _store_part(
            part_ptr, lse_ptr, window_splits + split, rows, out_row_M, real_M, m_M, l_M, acc_MD, D, BLOCK_D
        )  # fmt: skip


@triton.jit(do_not_specialize=["queries", "window_slots", "middle_slots"])
def combine_speculation_kernel(
    window_part_ptr,
    window_lse_ptr,
    window_l_ptr,
    middle_part_ptr,
    middle_lse_ptr,
    predicted_ptr,
    m_ptr,
    l_ptr,
    exact_ptr,
    sums_ptr,
    difference_ptr,
    norm_ptr,
    counter_ptr,
    queries,
    window_slots,
    middle_slots,
    H: tl.constexpr,
    D: tl.constexpr,
    STAGE: tl.constexpr,
    MIDDLE: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ALL_H: tl.constexpr,
):
    """BLOCK_H heads of one query (of B*N ``queries``) per program.

    STAGE "whole": the window's parts and the middle's give ``predicted`` and ``exact`` (any dtype) and the norms.
    STAGE "predict": the window's parts alone give ``predicted`` and its statistics ``m`` (here the natural
    log-sum-exp) and ``l`` (1, or 0 where no key was seen). STAGE "finish": as "whole", but the window comes as one
    such prediction (``window_lse`` holds its m, ``window_l`` its l). ``sums`` [B, N, H, 2] holds the heads' norms on
    the way; ``difference`` and ``norm`` are [B, N].
    """
    query = (tl.program_id(0) // HEAD_BLOCKS).to(tl.int64)
    head_H = tl.program_id(0) % HEAD_BLOCKS * BLOCK_H + tl.arange(0, BLOCK_H)
    real_H = head_H < H
    row_H = query * H + head_H
    rows = queries.to(tl.int64) * H
    d_D = tl.arange(0, BLOCK_D)
    out_HD = row_H[:, None] * D + d_D[None, :]
    real_HD = real_H[:, None] & (d_D[None, :] < D)

    slot_S = tl.arange(0, BLOCK_W)
    real_HS = real_H[:, None] & (slot_S[None, :] < window_slots)
    window_lse_HS = tl.load(
        window_lse_ptr + slot_S[None, :] * rows + row_H[:, None], mask=real_HS, other=float("-inf")
    )  # fmt: skip
    if STAGE == "finish":
        l_HS = tl.load(window_l_ptr + slot_S[None, :] * rows + row_H[:, None], mask=real_HS, other=0.0)
        some_l_HS = tl.where(l_HS == 0.0, 1.0, l_HS)
        window_lse_HS = tl.where(l_HS == 0.0, float("-inf"), window_lse_HS * LOG2_E + tl.log2(some_l_HS))
    window_HD, window_lse_H = _merge(
        window_part_ptr, window_lse_HS, real_HS, slot_S, row_H, rows, D, BLOCK_D
    )  # fmt: skip
    if STAGE == "predict":
        tl.store(predicted_ptr + out_HD, window_HD.to(predicted_ptr.dtype.element_ty), mask=real_HD)
        tl.store(m_ptr + row_H, window_lse_H / LOG2_E, mask=real_H)
        tl.store(l_ptr + row_H, tl.where(window_lse_H == float("-inf"), 0.0, 1.0), mask=real_H)
    else:
        exact_HD = window_HD
        difference_HD = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        if MIDDLE:
            slot_S = tl.arange(0, BLOCK_S)
            real_HS = real_H[:, None] & (slot_S[None, :] < middle_slots)
            middle_lse_HS = tl.load(
                middle_lse_ptr + slot_S[None, :] * rows + row_H[:, None], mask=real_HS, other=float("-inf")
            )  # fmt: skip
            middle_HD, middle_lse_H = _merge(
                middle_part_ptr, middle_lse_HS, real_HS, slot_S, row_H, rows, D, BLOCK_D
            )  # fmt: skip
            m_H = tl.maximum(window_lse_H, middle_lse_H)
            safe_m_H = tl.where(m_H == float("-inf"), 0.0, m_H)
            window_H = tl.exp2(window_lse_H - safe_m_H)
            middle_H = tl.exp2(middle_lse_H - safe_m_H)
            total_H = tl.where(m_H == float("-inf"), 1.0, window_H + middle_H)
            share_H = middle_H / total_H
            exact_HD = window_HD * (window_H / total_H)[:, None] + middle_HD * share_H[:, None]
            difference_HD = (window_HD - middle_HD) * share_H[:, None]
        # a store before the middle's loads would keep them from starting with the window's
        tl.store(predicted_ptr + out_HD, window_HD.to(predicted_ptr.dtype.element_ty), mask=real_HD)
        tl.store(exact_ptr + out_HD, exact_HD.to(exact_ptr.dtype.element_ty), mask=real_HD)
        difference_H = tl.sum(difference_HD * difference_HD, 1)
        norm_H = tl.sum(exact_HD * exact_HD, 1)
        if HEAD_BLOCKS == 1:
            tl.store(difference_ptr + query, tl.sum(difference_H, 0))
            tl.store(norm_ptr + query, tl.sum(norm_H, 0))
        else:
            tl.store(sums_ptr + row_H * 2, difference_H, mask=real_H)
            tl.store(sums_ptr + row_H * 2 + 1, norm_H, mask=real_H)
            # all threads have stored before one of them counts the program in
            tl.debug_barrier()
            done = tl.atomic_add(counter_ptr + query, 1, sem="acq_rel", scope="gpu")
            if done == HEAD_BLOCKS - 1:
                all_H = tl.arange(0, ALL_H)
                sums_ptr += query * H * 2
                difference_A = tl.load(sums_ptr + all_H * 2, mask=all_H < H, other=0.0, cache_modifier=".cg")
                norm_A = tl.load(sums_ptr + all_H * 2 + 1, mask=all_H < H, other=0.0, cache_modifier=".cg")
                tl.store(difference_ptr + query, tl.sum(difference_A, 0))
                tl.store(norm_ptr + query, tl.sum(norm_A, 0))
