"""Tree attention in Triton that adds up a row's keys in an order that does not depend on the tree, nor on other rows.

A row's keys are taken by their *number along its own path*: the key of number j < prefix is the committed one in column
j, the others are the row's ancestors in the tree, in order, and itself. The numbers are cut into spans of SPAN keys and
these into blocks, at multiples of their sizes. A program makes the partial result of one span, block after block; then
the spans of a row are joined in order. How many spans and blocks there are hangs on the row's last number alone. So a
tree node gets the sums, in the order, that plain decoding makes once the node's ancestors are committed.

Rows are taken in tiles of 16, the least that tensor cores take: a row is a (node, head) pair of one KV head. A span
whose columns are its numbers for all nodes is read once for as many nodes as fill a tile: those inside the prefix, and
all spans of a chain. Any other span belongs to one node, whose ancestors are looked up: its tile has the node's heads
alone. Both run the same instructions; which nodes and columns they are is data. A block in which a row sees nothing
leaves that row as it was, to the bit.

Bytes moved from and to device memory, per sequence, for e bytes per element: keys and values 2*G*D*e for each tile of
nodes and each of its keys (fewer where they hit the L2 cache); partial results 2*4*(D + 2)*N*H for each span; the
numbers 2*N*T, once a pass.

Legend: L layers, B batch, N queries (tree nodes), H query heads, G KV heads, R = H/G, D head dim, T tree slots,
S spans; in the kernels M rows of a tile, K keys of a block, S spans joined at once, D head dim padded to a power of
two.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

TILE_ROWS = tl.constexpr(16)
FAR = tl.constexpr(2147483647)


@triton.jit(
    do_not_specialize=["N", "T", "stride_row_b", "stride_slot_b"],
    do_not_specialize_on_alignment=[
        "query_start_ptr", "key_start_ptr", "key_end_ptr", "prefix_ptr", "write_at_ptr", "live_ptr", "path_ptr"
    ],
)  # fmt: skip
def key_numbers_kernel(
    query_start_ptr,
    key_start_ptr,
    key_end_ptr,
    prefix_ptr,
    write_at_ptr,
    live_ptr,
    path_ptr,
    keys_ptr,
    N,
    T,
    stride_row_b,
    stride_slot_b,
    BLOCK_T: tl.constexpr,
):
    """Row ``program_id(0)`` of sequence ``program_id(1)``: the tree slots that it sees, in order, to ``path`` [B, N, T]
    int16, and how many keys it has, the prefix included, to ``keys`` [B, N] int32; 0 for padding.

    Of 16 bits, because copies of fewer than 32 are not asynchronous: attention would wait for the slots' numbers and
    the keys that they lead to in every step.
    """
    n = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    live = tl.load(live_ptr + b).to(tl.int32)
    prefix = tl.load(prefix_ptr + b).to(tl.int32)
    slots = tl.load(write_at_ptr + b).to(tl.int32) + live - prefix
    query = tl.load(query_start_ptr + b * stride_row_b + n).to(tl.int32)
    path_ptr += (b * N + n) * T
    count = 0
    for first in range(0, tl.where(n < live, slots, 0), BLOCK_T):
        slot_T = first + tl.arange(0, BLOCK_T)
        exists_T = slot_T < slots
        start_T = tl.load(key_start_ptr + b * stride_slot_b + slot_T, mask=exists_T, other=FAR).to(tl.int32)
        end_T = tl.load(key_end_ptr + b * stride_slot_b + slot_T, mask=exists_T, other=0).to(tl.int32)
        seen_T = ((start_T <= query) & (query < end_T)).to(tl.int32)
        tl.store(path_ptr + count + tl.cumsum(seen_T, 0) - 1, slot_T.to(tl.int16), mask=seen_T > 0)
        count += tl.sum(seen_T, 0)
    tl.store(keys_ptr + b * N + n, tl.where(n < live, prefix + count, 0))


@triton.jit
def _keys_of(keys_ptr, prefix, live, b, node_M, real_M, N, CHAIN: tl.constexpr):
    """How many keys each row has; 0 for one that is not real."""
    keys_M = prefix + node_M + 1
    if not CHAIN:
        keys_M = tl.load(keys_ptr + b * N + node_M, mask=real_M, other=0).to(tl.int32)
    return tl.where(real_M & (node_M < live), keys_M, 0)


@triton.jit
def _first_seen(position_ptr, b, node_M, real_M, keys_M, stride_position_b, window, WINDOWED: tl.constexpr):
    """The number of the first key that a window leaves in each row's sight."""
    first_M = keys_M * 0
    if WINDOWED:
        position_M = tl.load(position_ptr + b * stride_position_b + node_M, mask=real_M, other=0).to(tl.int32)
        first_M = tl.maximum(position_M - window + 1, 0)
    return first_M


@triton.jit(
    # as for the tree attention kernel: these change from pass to pass
    do_not_specialize=[
        "B", "N", "T", "first_node", "nodes", "spans", "shared", "own_spans", "window", "stride_position_b"
    ],
    do_not_specialize_on_alignment=[
        "path_ptr", "keys_ptr", "position_ptr", "slot_ptr", "prefix_ptr", "live_ptr", "top_ptr", "total_ptr"
    ],
)  # fmt: skip
def aligned_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    path_ptr,
    keys_ptr,
    position_ptr,
    slot_ptr,
    prefix_ptr,
    live_ptr,
    part_ptr,
    top_ptr,
    total_ptr,
    stride_ql,
    stride_qb,
    stride_qn,
    stride_qh,
    stride_kl,
    stride_kb,
    stride_kg,
    stride_kc,
    stride_vl,
    stride_vb,
    stride_vg,
    stride_vc,
    stride_position_b,
    B,
    N,
    T,
    first_node,
    nodes,
    spans,
    shared,
    own_spans,
    window,
    scale_log2,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    CHAIN: tl.constexpr,
    BY_PATH: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPAN: tl.constexpr,
):
    """A tile of rows and a span ``program_id(0)``; layer, sequence, KV head and HEADS of its R query heads
    ``program_id(1)``.

    Of the ``nodes`` nodes from ``first_node`` on. The first ``shared`` * ``spans`` programs have a span of TILE_ROWS //
    HEADS nodes, the others one of the ``own_spans`` spans of a node that begin with the one in which the prefix ends.
    Writes ``part`` [S, L, B, nodes, H, D], the weighted sum of values, ``top`` [S, L, B, nodes, H], the largest score
    in base 2, and ``total``, the sum of weights, float32, of the spans that a row has keys in. BY_PATH: the columns of
    keys behind the prefix are looked up; of a CHAIN, whose T is 0, there are none to look up.
    """
    HEAD_TILES: tl.constexpr = (R + HEADS - 1) // HEADS
    TOGETHER: tl.constexpr = TILE_ROWS // HEADS
    first_head = tl.program_id(1) % HEAD_TILES * HEADS
    rest = tl.program_id(1) // HEAD_TILES
    g = (rest % G).to(tl.int64)
    sequence = rest // G
    layer = (sequence // B).to(tl.int64)
    b = (sequence % B).to(tl.int64)
    slot = tl.load(slot_ptr + b).to(tl.int64)
    prefix = tl.load(prefix_ptr + b).to(tl.int32)
    live = tl.load(live_ptr + b).to(tl.int32)

    row_M = tl.arange(0, TILE_ROWS)
    place = tl.program_id(0)
    is_shared = place < shared * spans
    own = place - shared * spans
    span = tl.where(is_shared, place % spans, prefix // SPAN + own % tl.maximum(own_spans, 1))
    tile_node = tl.where(is_shared, place // spans * TOGETHER, own // tl.maximum(own_spans, 1))
    together = tl.where(is_shared, TOGETHER, 1)
    # of a tree, the span in which the prefix ends and those after it are each node's own
    end_span = spans
    if not CHAIN:
        end_span = tl.where(is_shared, prefix // SPAN, spans)
    together = tl.where(span < end_span, together, 0)
    node_M = tile_node + row_M // HEADS
    head_M = first_head + row_M % HEADS
    real_M = (row_M < together * HEADS) & (head_M < R) & (node_M < nodes)
    node_M = first_node + node_M
    keys_M = _keys_of(keys_ptr, prefix, live, b, node_M, real_M, N, CHAIN)
    first_M = _first_seen(position_ptr, b, node_M, real_M, keys_M, stride_position_b, window, WINDOWED)
    in_span_M = (keys_M > span * SPAN) & (first_M < span * SPAN + SPAN)

    d_D = tl.arange(0, BLOCK_D)
    q_row_M = node_M.to(tl.int64) * stride_qn + (g * R + head_M) * stride_qh
    q_MD = tl.load(
        q_ptr + layer * stride_ql + b * stride_qb + q_row_M[:, None] + d_D[None, :],
        mask=real_M[:, None] & (d_D[None, :] < D),
        other=0.0,
    )
    k_ptr += layer * stride_kl + slot * stride_kb + g * stride_kg
    v_ptr += layer * stride_vl + slot * stride_vb + g * stride_vg
    # read where the prefix has ended, which is in a tile of one node
    path_ptr += (b * N + first_node + tile_node) * T - prefix
    top_M = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total_M = tl.zeros([TILE_ROWS], tl.float32)
    acc_MD = tl.zeros([TILE_ROWS, BLOCK_D], tl.float32)

    begin = tl.maximum(tl.min(tl.where(in_span_M, first_M, FAR), 0) // BLOCK_K * BLOCK_K, span * SPAN)
    end = tl.minimum(tl.max(tl.where(in_span_M, keys_M, 0), 0), span * SPAN + SPAN)
    for base in range(begin, end, BLOCK_K):
        number_K = base + tl.arange(0, BLOCK_K)
        exists_K = number_K < end
        column_K = number_K
        if BY_PATH:
            behind_K = number_K >= tl.where(T > 0, prefix, FAR)
            ancestor_K = tl.load(path_ptr + number_K, mask=exists_K & behind_K, other=0).to(tl.int32)
            column_K = tl.where(behind_K, prefix + ancestor_K, number_K)
        in_cache_KD = exists_K[:, None] & (d_D[None, :] < D)
        k_KD = tl.load(k_ptr + column_K[:, None] * stride_kc + d_D[None, :], mask=in_cache_KD, other=0.0)
        seen_MK = (number_K[None, :] < keys_M[:, None]) & (number_K[None, :] >= first_M[:, None])
        score_MK = tl.dot(q_MD, tl.trans(k_KD), input_precision="tf32x3") * scale_log2
        score_MK = tl.where(seen_MK, score_MK, float("-inf"))
        sees_M = (base < keys_M) & (base + BLOCK_K > first_M)
        new_M = tl.maximum(top_M, tl.max(score_MK, 1))
        safe_M = tl.where(new_M == float("-inf"), 0.0, new_M)
        weight_MK = tl.exp2(score_MK - safe_M[:, None])
        decay_M = tl.exp2(top_M - safe_M)
        v_KD = tl.load(v_ptr + column_K[:, None] * stride_vc + d_D[None, :], mask=in_cache_KD, other=0.0)
        more_MD = tl.dot(weight_MK.to(v_KD.dtype), v_KD, acc_MD * decay_M[:, None], input_precision="tf32x3")
        acc_MD = tl.where(sees_M[:, None], more_MD, acc_MD)
        total_M = tl.where(sees_M, total_M * decay_M + tl.sum(weight_MK, 1), total_M)
        top_M = tl.where(sees_M, new_M, top_M)

    sequences = tl.num_programs(1) // (G * HEAD_TILES)
    of_node_M = (span.to(tl.int64) * sequences + sequence) * nodes + node_M - first_node
    of_row_M = of_node_M * (G * R) + g * R + head_M
    stored_M = real_M & in_span_M
    tl.store(part_ptr + of_row_M[:, None] * D + d_D[None, :], acc_MD, mask=stored_M[:, None] & (d_D[None, :] < D))
    tl.store(top_ptr + of_row_M, top_M, mask=stored_M)
    tl.store(total_ptr + of_row_M, total_M, mask=stored_M)


@triton.jit(
    do_not_specialize=["B", "N", "first_node", "nodes", "window", "stride_position_b"],
    do_not_specialize_on_alignment=["keys_ptr", "position_ptr", "prefix_ptr", "live_ptr", "top_ptr", "total_ptr"],
)
def join_spans_kernel(
    part_ptr,
    top_ptr,
    total_ptr,
    keys_ptr,
    position_ptr,
    prefix_ptr,
    live_ptr,
    out_ptr,
    B,
    N,
    first_node,
    nodes,
    window,
    stride_position_b,
    H: tl.constexpr,
    D: tl.constexpr,
    CHAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Head ``program_id(0) % H`` of node ``program_id(0) // H``, layer and sequence ``program_id(1)``: out [L, B, N, H,
    D] from the parts of the row's spans, BLOCK_S of them at once, in order; 0 for padding.
    """
    rows = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    sequence = tl.program_id(1).to(tl.int64)
    b = sequence % B
    head = tl.program_id(0) % H
    node = first_node + tl.program_id(0) // H
    live = tl.load(live_ptr + b).to(tl.int32)
    prefix = tl.load(prefix_ptr + b).to(tl.int32)
    keys = _keys_of(keys_ptr, prefix, live, b, node, node < N, N, CHAIN)
    first = _first_seen(position_ptr, b, node, node < N, keys, stride_position_b, window, WINDOWED)
    row = sequence * tl.num_programs(0) + tl.program_id(0)
    d_D = tl.arange(0, BLOCK_D)
    top = float("-inf")
    total = 0.0
    acc_D = tl.zeros([BLOCK_D], tl.float32)
    # from a multiple of BLOCK_S on: a window moves on, and spans stay where they are
    for base in range(first // SPAN // BLOCK_S * BLOCK_S, (keys + SPAN - 1) // SPAN, BLOCK_S):
        span_S = base + tl.arange(0, BLOCK_S)
        real_S = (span_S * SPAN < keys) & (span_S * SPAN + SPAN > first)
        at_S = span_S.to(tl.int64) * rows + row
        top_S = tl.load(top_ptr + at_S, mask=real_S, other=float("-inf"))
        total_S = tl.load(total_ptr + at_S, mask=real_S, other=0.0)
        real_SD = real_S[:, None] & (d_D[None, :] < D)
        part_SD = tl.load(part_ptr + at_S[:, None] * D + d_D[None, :], mask=real_SD, other=0.0)
        new = tl.maximum(top, tl.max(top_S, 0))
        decay = tl.exp2(top - new)
        weight_S = tl.exp2(top_S - new)
        total = total * decay + tl.sum(total_S * weight_S, 0)
        acc_D = acc_D * decay + tl.sum(part_SD * weight_S[:, None], 0)
        top = new
    out_D = tl.where(keys > 0, acc_D / tl.where(total == 0.0, 1.0, total), 0.0)
    to = out_ptr + ((sequence * N + node) * H + head) * D + d_D
    tl.store(to, out_D.to(out_ptr.dtype.element_ty), mask=d_D < D)
