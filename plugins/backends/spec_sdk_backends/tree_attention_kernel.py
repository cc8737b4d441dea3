"""Tree attention in Triton: N tree nodes attend to a committed prefix and to their own ancestors, in O(N) mask memory.

Tree slot ``s`` is visible to a query with pre-order number ``x`` iff ``start[s] <= x < end[s]`` (FlashSpecInfer's
interval mask, "SpecInfer / FlashSpecInfer" in the project's paper notes); every query sees the whole prefix.

One program owns a block of query rows of one KV head. A row is a (node, head) pair: the R query heads that share the KV
head lie next to each other, so that one K/V tile serves R heads of BLOCK_M/R consecutive nodes. It walks over the
prefix, then over the tree's slots, with an online softmax in float32 (FlashAttention). Of the tree it reads only the
blocks of slots that one of its queries may see. Which these are, it learns in one of two ways:

- LISTED: ``visible_blocks_kernel`` has written them down, once for all layers, heads and splits of a pass. They are
  walked in one loop, whose loads the compiler pipelines, and splits share what is visible, not what there is;
- otherwise it looks itself: slots after a closed tree's last node of the block are left out (there ``start[s] = s``),
  and of any other block of slots the interval ends are read first (8 bytes a slot at most), its K and V only if
  ``min(start) <= max(query)`` and ``max(end) > min(query)``. Visible blocks that follow each other are walked in one
  pipelined loop.

A layer's window hides keys by their positions, and the prefix is walked from the first block that a row of the program
still sees. Scores may be soft-capped before they are masked.

For few rows the keys are also split over programs (FlashDecoding): each split writes its normalised output and
log-sum-exp, and a second kernel combines them.

Bytes moved from and to device memory, per sequence, with M = BLOCK_M and e bytes per element: queries and output
2*N*H*D*e; keys and values 2*G*D*e*(P + visited slots) for each of the ceil(N*R/M) row blocks (fewer where they hit the
L2 cache); the mask 4*T (``end`` alone, closed tree) or 8*T + 4*N (with starts) for each of them, of visible blocks
alone and 2 bytes a block where these are listed, and no N x N anywhere;
with S splits, a further 2*S*N*H*(D + 1)*4 for the partial results.

Sequences of one launch may each have a cache slot, a prefix, live rows and tree slots of their own, and several layers
may be read at once: then all of these are read from tensors, so that the host need not know them.

Legend: L layers, B batch, N queries (tree nodes), H query heads, G KV heads, R = H/G, D head dim, C key slots of the
cache view, P prefix length, T tree slots; in the kernels M rows of a block, K keys of a block, D head dim padded to a
power of two, S most splits, Y blocks of tree slots.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import begin_the_next_launch, wait_for_the_launch_before

LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    q_MD,
    k_ptr,
    v_ptr,
    stride_kc,
    stride_kd,
    stride_vc,
    stride_vd,
    slot_K,
    exists_K,
    visible_MK,
    m_M,
    l_M,
    acc_MD,
    scale_log2,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    cap_log2=0.0,
    CAPPED: tl.constexpr = False,
    ONE: tl.constexpr = False,
):
    """One step of the online softmax: a block of keys and values, base-2 exponents. Returns the new (m, l, acc).

    CAPPED: a score s becomes cap * tanh(s / cap). ONE: values are the keys, and are read once.
    Products of float32 are made of three of tf32 each, on tensor cores, and lose a few bits of float32's 24 at most.
    """
    d_D = tl.arange(0, BLOCK_D)
    in_cache_KD = exists_K[:, None] & (d_D[None, :] < D)
    k_KD = tl.load(k_ptr + slot_K[:, None] * stride_kc + d_D[None, :] * stride_kd, mask=in_cache_KD, other=0.0)
    score_MK = tl.dot(q_MD, tl.trans(k_KD), input_precision="tf32x3") * scale_log2
    if CAPPED:
        # tanh(x) = 1 - 2 / (e^2x + 1), which an infinite power does not harm
        score_MK = cap_log2 - 2.0 * cap_log2 / (tl.exp2(score_MK * (2.8853900817779268 / cap_log2)) + 1.0)
    score_MK = tl.where(visible_MK, score_MK, float("-inf"))
    m_new_M = tl.maximum(m_M, tl.max(score_MK, 1))
    # a row that has seen no key yet has maximum -inf, and -inf - -inf is NaN
    m_safe_M = tl.where(m_new_M == float("-inf"), 0.0, m_new_M)
    weight_MK = tl.exp2(score_MK - m_safe_M[:, None])
    decay_M = tl.exp2(m_M - m_safe_M)
    if ONE:
        v_KD = k_KD
    else:
        v_KD = tl.load(v_ptr + slot_K[:, None] * stride_vc + d_D[None, :] * stride_vd, mask=in_cache_KD, other=0.0)
    acc_MD = tl.dot(weight_MK.to(v_KD.dtype), v_KD, acc_MD * decay_M[:, None], input_precision="tf32x3")
    return m_new_M, l_M * decay_M + tl.sum(weight_MK, 1), acc_MD


@triton.jit
def _intervals(key_start_ptr, key_end_ptr, slot_K, exists_K, CLOSED: tl.constexpr):
    """First and one-past-last pre-order number that see each slot; nobody sees a slot that does not exist."""
    end_K = tl.load(key_end_ptr + slot_K, mask=exists_K, other=0).to(tl.int32)
    start_K = slot_K if CLOSED else tl.load(key_start_ptr + slot_K, mask=exists_K, other=2147483647).to(tl.int32)
    return start_K, end_K


@triton.jit
def _numbers(query_start_ptr, node_M, real_M, T, live, CLOSED: tl.constexpr):
    """The rows' pre-order numbers, and the first and the last of those that are real."""
    # of a closed tree every slot is a query's candidate, and the last slots are the queries
    query_M = node_M + (T - live)
    if not CLOSED:
        query_M = tl.load(query_start_ptr + node_M, mask=real_M, other=0).to(tl.int32)
    first_query = tl.min(tl.where(real_M, query_M, 2147483647), 0)
    last_query = tl.max(tl.where(real_M, query_M, -1), 0)
    return query_M, first_query, last_query


@triton.jit
def _is_seen(
    key_start_ptr,
    key_end_ptr,
    first_slot,
    T,
    first_query,
    last_query,
    CLOSED: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Whether one of the queries between the first and the last may see one of the block's slots."""
    slot_K = first_slot + tl.arange(0, BLOCK_K)
    start_K, end_K = _intervals(key_start_ptr, key_end_ptr, slot_K, slot_K < T, CLOSED)
    return (tl.min(start_K, 0) <= last_query) & (tl.max(end_K, 0) > first_query)


@triton.jit
def _attend_tree(
    q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, key_start_ptr, key_end_ptr, key_position_ptr,
    first_slot, T, prefix, query_M, hidden_M, m_M, l_M, acc_MD, scale_log2, cap_log2,
    D: tl.constexpr, CLOSED: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, ONE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """:func:`_attend` to the block of tree slots from ``first_slot`` on."""
    tree_slot_K = first_slot + tl.arange(0, BLOCK_K)
    exists_K = tree_slot_K < T
    start_K, end_K = _intervals(key_start_ptr, key_end_ptr, tree_slot_K, exists_K, CLOSED)
    visible_MK = (start_K[None, :] <= query_M[:, None]) & (query_M[:, None] < end_K[None, :])
    if WINDOWED:
        position_K = tl.load(key_position_ptr + tree_slot_K, mask=exists_K, other=0).to(tl.int32)
        visible_MK = visible_MK & (position_K[None, :] > hidden_M[:, None])
    return _attend(
        q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, prefix + tree_slot_K, exists_K,
        visible_MK, m_M, l_M, acc_MD, scale_log2, D, BLOCK_D, cap_log2, CAPPED, ONE,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["N", "T", "most", "stride_start_b", "stride_end_b", "stride_query_b"],
    do_not_specialize_on_alignment=[
        "key_start_ptr", "key_end_ptr", "query_start_ptr", "prefix_ptr", "write_at_ptr", "live_ptr"
    ],
)  # fmt: skip
def visible_blocks_kernel(
    key_start_ptr,
    key_end_ptr,
    query_start_ptr,
    prefix_ptr,
    write_at_ptr,
    live_ptr,
    list_ptr,
    stride_start_b,
    stride_end_b,
    stride_query_b,
    N,
    T,
    most,
    R: tl.constexpr,
    CLOSED: tl.constexpr,
    CACHED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Rows ``program_id(0)`` of sequence ``program_id(1)``: which blocks of BLOCK_K tree slots one of them sees.

    ``list`` [B, row blocks, 1 + most] int16: how many they are, then their numbers, rising; ``most`` is how many there
    can be. AT_ONCE blocks are looked at together. The other arguments are those of :func:`tree_attention_kernel`.

    Of 16 bits, because copies of fewer than 32 are not asynchronous: the compiler would copy a number of 32 bits ahead
    of the keys that it leads to, and wait for all copies in every step.
    """
    b = tl.program_id(1).to(tl.int64)
    live = N
    if CACHED:
        live = tl.load(live_ptr + b).to(tl.int32)
        T = tl.load(write_at_ptr + b).to(tl.int32) + live - tl.load(prefix_ptr + b).to(tl.int32)
    row_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real_M = row_M < live * R
    _, first_query, last_query = _numbers(
        query_start_ptr + b * stride_query_b, row_M // R, real_M, T, live, CLOSED
    )  # fmt: skip
    key_start_ptr += b * stride_start_b
    key_end_ptr += b * stride_end_b
    list_ptr += (b * tl.num_programs(0) + tl.program_id(0)) * (1 + most)
    count = 0
    for first in range(0, tl.cdiv(T, BLOCK_K), AT_ONCE):
        block_Y = first + tl.arange(0, AT_ONCE)
        slot_YK = block_Y[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
        start_YK, end_YK = _intervals(key_start_ptr, key_end_ptr, slot_YK, slot_YK < T, CLOSED)
        seen_YK = (start_YK <= last_query) & (end_YK > first_query)
        seen_Y = tl.max(seen_YK.to(tl.int32), 1)
        tl.store(list_ptr + count + tl.cumsum(seen_Y, 0), block_Y, mask=seen_Y > 0)
        count += tl.sum(seen_Y, 0)
    tl.store(list_ptr, count)


@triton.jit(
    # these change from pass to pass, and a kernel for each of their kinds would be compiled in the middle of a request;
    # strides of q, k and v do not change, and that rows begin at multiples of 16 bytes is what makes wide loads
    do_not_specialize=[
        "B", "N", "T", "P", "most", "splits", "window",
        "stride_start_b", "stride_end_b", "stride_query_b", "stride_keypos_b", "stride_querypos_b"
    ],
    do_not_specialize_on_alignment=[
        "key_start_ptr", "key_end_ptr", "query_start_ptr", "key_position_ptr", "query_position_ptr",
        "slot_ptr", "prefix_ptr", "write_at_ptr", "live_ptr"
    ],
)  # fmt: skip
def tree_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    key_start_ptr,
    key_end_ptr,
    query_start_ptr,
    key_position_ptr,
    query_position_ptr,
    slot_ptr,
    prefix_ptr,
    write_at_ptr,
    live_ptr,
    list_ptr,
    sink_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    stride_ql,
    stride_qb,
    stride_qn,
    stride_qh,
    stride_qd,
    stride_kl,
    stride_kb,
    stride_kg,
    stride_kc,
    stride_kd,
    stride_vl,
    stride_vb,
    stride_vg,
    stride_vc,
    stride_vd,
    stride_start_b,
    stride_end_b,
    stride_query_b,
    stride_keypos_b,
    stride_querypos_b,
    B,
    N,
    T,
    P,
    most,
    splits,
    window,
    scale_log2,
    cap_log2,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    CLOSED: tl.constexpr,
    CACHED: tl.constexpr,
    LISTED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    ONE: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Rows ``program_id(0)``; layer, sequence and KV head ``program_id(1)``; split ``program_id(2)``.

    CACHED: sequence b's keys lie in slot ``slot[b]`` of the cache, its prefix is ``prefix[b]`` long, ``live[b]`` of its
    N rows are no padding, and it has ``write_at[b] + live[b] - prefix[b]`` tree slots; padding gets 0. Otherwise all
    sequences have P, N and T, and the keys are in their order. One split writes ``out`` [L, B, N, H, D], several write
    ``part`` [splits, L, B, N, H, D] and ``lse`` (base 2) [splits, L, B, N, H], both float32. WINDOWED: keys ``window``
    positions or more before a query are hidden from it; CAPPED, ONE: as :func:`_attend` has them. SINKS: a query head
    has a key of score ``sink`` [H] and value 0. LISTED: ``list`` is what :func:`visible_blocks_kernel` wrote for the
    same rows and keys of a block, with the same ``most``.
    """
    begin_the_next_launch(OVERLAPPED)
    if not CACHED:
        # the mask may just have been made; a pass's inputs were there before it began
        wait_for_the_launch_before(OVERLAPPED)
    sequence = tl.program_id(1) // G
    layer = (sequence // B).to(tl.int64)
    b = (sequence % B).to(tl.int64)
    g = (tl.program_id(1) % G).to(tl.int64)
    split = tl.program_id(2)
    slot = b
    prefix = P
    live = N
    if CACHED:
        slot = tl.load(slot_ptr + b).to(tl.int64)
        prefix = tl.load(prefix_ptr + b).to(tl.int32)
        live = tl.load(live_ptr + b).to(tl.int32)
        T = tl.load(write_at_ptr + b).to(tl.int32) + live - prefix
    first_row = tl.program_id(0) * BLOCK_M
    row_M = first_row + tl.arange(0, BLOCK_M)
    real_M = row_M < live * R
    node_M = row_M // R
    head_M = g * R + row_M % R
    d_D = tl.arange(0, BLOCK_D)

    query_M, first_query, last_query = _numbers(
        query_start_ptr + b * stride_query_b, node_M, real_M, T, live, CLOSED
    )  # fmt: skip

    k_ptr += layer * stride_kl + slot * stride_kb + g * stride_kg
    v_ptr += layer * stride_vl + slot * stride_vb + g * stride_vg

    # a block of padding alone reads no keys
    prefix_keys = tl.where(first_row < live * R, prefix, 0)
    first_key = 0
    hidden_M = query_M
    if WINDOWED:
        position_M = tl.load(
            query_position_ptr + b * stride_querypos_b + node_M, mask=real_M, other=2147483647
        ).to(tl.int32)  # fmt: skip
        # the last position that is out of each row's sight
        hidden_M = position_M - window
        first_key = tl.maximum(tl.min(hidden_M, 0) + 1, 0) // BLOCK_K * BLOCK_K
        first_key = tl.minimum(first_key, prefix_keys)
    # a tree of one block is the last split's, which then has nothing else
    of_prefix = tl.where(T <= BLOCK_K, tl.maximum(splits - 1, 1), splits)
    share = tl.cdiv(tl.cdiv(prefix_keys - first_key, BLOCK_K), of_prefix) * BLOCK_K
    last_key = tl.minimum(first_key + (split + 1) * share, prefix_keys)
    if CACHED:
        wait_for_the_launch_before(OVERLAPPED)
    blocks = 0
    if LISTED:
        list_ptr += (b * tl.num_programs(0) + tl.program_id(0)) * (1 + most)
        blocks = tl.load(list_ptr).to(tl.int32)
    q_row_M = node_M.to(tl.int64) * stride_qn + head_M * stride_qh
    q_MD = tl.load(
        q_ptr + layer * stride_ql + b * stride_qb + q_row_M[:, None] + d_D[None, :] * stride_qd,
        mask=real_M[:, None] & (d_D[None, :] < D),
        other=0.0,
    )
    m_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_M = tl.zeros([BLOCK_M], tl.float32)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if SINKS:
        # of the first split: the others are combined with it
        sink_M = tl.load(sink_ptr + head_M) * 1.4426950408889634
        m_M = tl.where(split == 0, sink_M, m_M)
        l_M = tl.where(split == 0, 1.0, l_M)
    for base in range(first_key + split * share, last_key, BLOCK_K):
        slot_K = base + tl.arange(0, BLOCK_K)
        exists_K = slot_K < prefix
        visible_MK = tl.broadcast_to(exists_K[None, :], (BLOCK_M, BLOCK_K))
        if WINDOWED:
            visible_MK = visible_MK & (slot_K[None, :] > hidden_M[:, None])
        m_M, l_M, acc_MD = _attend(
            q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, slot_K, exists_K, visible_MK,
            m_M, l_M, acc_MD, scale_log2, D, BLOCK_D, cap_log2, CAPPED, ONE,
        )  # fmt: skip

    key_start_ptr += b * stride_start_b
    key_end_ptr += b * stride_end_b
    key_position_ptr += b * stride_keypos_b
    # the tree is shared out from the last split on: of the prefix those may have less
    from_last = splits - 1 - split
    if LISTED:
        share = tl.cdiv(blocks, splits)
        for i in range(from_last * share, tl.minimum((from_last + 1) * share, blocks)):
            m_M, l_M, acc_MD = _attend_tree(
                q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, key_start_ptr, key_end_ptr,
                key_position_ptr, tl.load(list_ptr + 1 + i).to(tl.int32) * BLOCK_K, T, prefix, query_M, hidden_M,
                m_M, l_M, acc_MD, scale_log2, cap_log2, D, CLOSED, WINDOWED, CAPPED, ONE, BLOCK_K, BLOCK_D,
            )  # fmt: skip
    else:
        slots = tl.where(first_row < live * R, T, 0)
        if CLOSED:
            slots = tl.minimum(T, last_query + 1)
        share = tl.cdiv(tl.cdiv(slots, BLOCK_K), splits) * BLOCK_K
        base = from_last * share
        stop = tl.minimum((from_last + 1) * share, slots)
        # a loop with a branch around its loads would not be pipelined: runs of visible blocks get a loop of their own
        while base < stop:
            run_end = base
            while (run_end < stop) & _is_seen(
                key_start_ptr, key_end_ptr, run_end, T, first_query, last_query, CLOSED, BLOCK_K
            ):
                run_end += BLOCK_K
            for first_slot in range(base, run_end, BLOCK_K):
                m_M, l_M, acc_MD = _attend_tree(
                    q_MD, k_ptr, v_ptr, stride_kc, stride_kd, stride_vc, stride_vd, key_start_ptr, key_end_ptr,
                    key_position_ptr, first_slot, T, prefix, query_M, hidden_M,
                    m_M, l_M, acc_MD, scale_log2, cap_log2, D, CLOSED, WINDOWED, CAPPED, ONE, BLOCK_K, BLOCK_D,
                )  # fmt: skip
            # the block after a run is not seen
            base = run_end + BLOCK_K

    # rows of padding beside live ones saw the prefix
    l_M = tl.where(real_M, l_M, 0.0)
    safe_l_M = tl.where(l_M == 0.0, 1.0, l_M)
    out_MD = tl.where(real_M[:, None], acc_MD / safe_l_M[:, None], 0.0)
    sequences = tl.num_programs(1) // G
    out_row_M = ((split.to(tl.int64) * sequences + sequence) * N + node_M) * (G * R) + head_M
    in_out_M = row_M < N * R
    in_out_MD = in_out_M[:, None] & (d_D[None, :] < D)
    offset_MD = out_row_M[:, None] * D + d_D[None, :]
    if splits == 1:
        tl.store(out_ptr + offset_MD, out_MD.to(out_ptr.dtype.element_ty), mask=in_out_MD)
    else:
        tl.store(part_ptr + offset_MD, out_MD, mask=in_out_MD)
        lse_M = tl.where(l_M == 0.0, float("-inf"), m_M + tl.log2(safe_l_M))
        tl.store(lse_ptr + out_row_M, lse_M, mask=in_out_M)


@triton.jit
def _merge(part_ptr, lse_MS, real_MS, slot_S, row_M, rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Normalised output [M, D] and base-2 log-sum-exp [M] (-inf if no key was seen) of the slots' parts.

    All parts are loaded at once: one wait for memory, however many there are.
    """
    d_D = tl.arange(0, BLOCK_D)
    part_MSD = tl.load(
        part_ptr + (slot_S[None, :, None] * rows + row_M[:, None, None]) * D + d_D[None, None, :],
        mask=real_MS[:, :, None] & (d_D[None, None, :] < D),
        other=0.0,
    )
    m_M = tl.max(lse_MS, 1)
    weight_MS = tl.exp2(lse_MS - tl.where(m_M == float("-inf"), 0.0, m_M)[:, None])
    l_M = tl.sum(weight_MS, 1)
    safe_l_M = tl.where(l_M == 0.0, 1.0, l_M)
    o_MD = tl.sum(part_MSD * weight_MS[:, :, None], 1) / safe_l_M[:, None]
    return o_MD, tl.where(l_M == 0.0, float("-inf"), m_M + tl.log2(safe_l_M))


@triton.jit(do_not_specialize=["rows", "splits"])
def combine_splits_kernel(
    part_ptr,
    lse_ptr,
    out_ptr,
    rows,
    splits,
    D: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """out [rows, D] = softmax over splits of ``lse`` [splits, rows], times ``part`` [splits, rows, D].

    BLOCK_S is the most splits there may be: one compiled kernel for every number of them.
    """
    wait_for_the_launch_before(OVERLAPPED)
    row_M = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = rows.to(tl.int64)
    slot_S = tl.arange(0, BLOCK_S)
    real_MS = (row_M < rows)[:, None] & (slot_S[None, :] < splits)
    lse_MS = tl.load(lse_ptr + slot_S[None, :] * rows + row_M[:, None], mask=real_MS, other=float("-inf"))
    out_MD, _ = _merge(part_ptr, lse_MS, real_MS, slot_S, row_M, rows, D, BLOCK_D)
    d_D = tl.arange(0, BLOCK_D)
    real_MD = (row_M < rows)[:, None] & (d_D[None, :] < D)
    tl.store(out_ptr + row_M[:, None] * D + d_D[None, :], out_MD.to(out_ptr.dtype.element_ty), mask=real_MD)
