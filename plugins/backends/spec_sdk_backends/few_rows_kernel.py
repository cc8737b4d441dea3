"""Products of a matrix with few rows in Triton, whose launches overlap with those before and behind them.

A pass over a tree reads every weight once, as one over a token does. A library's product of 64 rows is a launch that
waits for the one before to end, and often two: the inputs are divided among programs, whose sums a further launch adds
up; and the small operations between two products are launches more. Here a program asks for its first weights while
the launch before ends, and products do what stands around them:

- ``summed_few_rows_kernel``: the last of the programs that share a block's inputs adds up their sums and the residual,
  and multiplies by the gain of the norm that is read next. What that norm divides a row by is not known before all of
  the row is: the blocks' sums of squares are written beside it, and the products of the row are scaled;
- ``rotated_few_rows_kernel``: Q, K and V are rotated, and K and V written into the cache;
- ``gated_few_rows_kernel``: activation(gate) * up;
- ``few_rows_kernel``: nothing but the product. If its inputs are divided, whatever reads it sums the parts (PARTS in
  :mod:`spec_sdk_backends.fused_block_kernels`).

So a block is four launches beside attention.

Bytes moved from and to device memory, with e bytes per element: O*I*e of weights, 4*S*K*O of the parts' sums if there
are several, and as many read where they are summed; K*O*e of results, half with a gate; (2 + S)*K*O*e with residual and
norm. The rows, K*I*e for each of the
O/BLOCK_O blocks of outputs, come from the L2 cache.

Legend: K rows, I inputs, O outputs, S parts of the inputs, H query heads, G KV heads, D head dim; in the kernels those
of a block, P pairs of outputs, Q blocks of squares.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.few_rows_block import product_of_block
from spec_sdk_backends.fused_block_kernels import gated


@triton.jit
def _normed(
    sum_OK, square_ptr, rows, epsilon, INPUTS: tl.constexpr, SQUARES: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Products of rows h [K, INPUTS], times 1 / sqrt(mean(h²) + epsilon), of whose squares ``square`` [SQUARES, K] is
    the sum; as they are if SQUARES is 0.
    """
    if SQUARES > 0:
        k_K = tl.arange(0, BLOCK_K)
        q_Q = tl.arange(0, BLOCK_Q)
        real_QK = (q_Q < SQUARES)[:, None] & (k_K < rows)[None, :]
        square_QK = tl.load(square_ptr + q_Q[:, None] * rows + k_K[None, :], mask=real_QK, other=0.0)
        scale_K = 1.0 / tl.sqrt_rn(tl.sum(square_QK, 0) / INPUTS + epsilon)
        sum_OK = sum_OK * scale_K[None, :]
    return sum_OK


@triton.jit(do_not_specialize=["rows"])
def few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    square_ptr,
    part_ptr,
    rows,
    epsilon,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    SQUARES: tl.constexpr,
    BIASED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """Outputs ``program_id(0)`` and part ``program_id(1)`` of the inputs: part [S, K, O] = x Wᵀ of x [K, I] and W
    [O, I], K at most BLOCK_K; the sum over S is the product. In float32, and rounded if ``part`` is of fewer bits.

    SQUARES > 0: x is what :func:`summed_few_rows_kernel` wrote, with ``square``, and the product that of its norm.
    BIASED: bias [O] is added to the first part. OVERLAPPED: :mod:`spec_sdk_backends.dependent_launches`; AHEAD inputs
    of each output are asked for before it waits. STAGES: of the pipeline. BITS: of the weights, maybe with OFFSETS
    (:mod:`spec_sdk_backends.interleaved_weights`); 0 of dense ones.
    """
    part = tl.program_id(1)
    o_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    real_O = o_O < OUTPUTS
    sum_OK = product_of_block(
        x_ptr, weight_ptr, o_O, real_O, rows, part,
        INPUTS, PARTS, OUTPUTS % BLOCK_O == 0, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, AHEAD, STAGES,
        OUTPUTS, BITS, OFFSETS,
    )  # fmt: skip
    sum_OK = _normed(sum_OK, square_ptr, rows, epsilon, INPUTS, SQUARES, BLOCK_K, BLOCK_Q)
    if BIASED:
        of_first_O = tl.where(part == 0, o_O, OUTPUTS) < OUTPUTS
        sum_OK += tl.load(bias_ptr + o_O, mask=of_first_O, other=0.0).to(tl.float32)[:, None]
    k_K = tl.arange(0, BLOCK_K)
    part_OK = part_ptr + (part * rows + k_K).to(tl.int64)[None, :] * OUTPUTS + o_O[:, None]
    tl.store(part_OK, sum_OK.to(part_ptr.dtype.element_ty), mask=real_O[:, None] & (k_K < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def summed_few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    h_ptr,
    gain_ptr,
    part_ptr,
    arrived_ptr,
    out_ptr,
    scaled_ptr,
    square_ptr,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """Outputs ``program_id(0)`` and part ``program_id(1)`` of the inputs: out [K, O] = h + x Wᵀ, of h [K, O], x [K, I]
    and W [O, I]. The last of a block's programs sums their ``part`` [PARTS, K, O], in one order; ``arrived`` [blocks]
    counts them, and is 0 before and after.

    SCALED: of the norm of ``out`` that is read next, all but the scale of rows: ``scaled`` = gain * out, and ``square``
    [blocks, K], the sums of out² over each block. The rest as :func:`few_rows_kernel`'s.
    """
    block = tl.program_id(0)
    part = tl.program_id(1)
    o_O = block * BLOCK_O + tl.arange(0, BLOCK_O)
    real_O = o_O < OUTPUTS
    sum_OK = product_of_block(
        x_ptr, weight_ptr, o_O, real_O, rows, part,
        INPUTS, PARTS, OUTPUTS % BLOCK_O == 0, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, AHEAD, STAGES,
        OUTPUTS, BITS, OFFSETS,
    )  # fmt: skip
    k_K = tl.arange(0, BLOCK_K)
    real_OK = real_O[:, None] & (k_K < rows)[None, :]
    offset_OK = k_K.to(tl.int64)[None, :] * OUTPUTS + o_O[:, None]
    # on its way while the others are waited for
    h_OK = tl.load(h_ptr + offset_OK, mask=real_OK, other=0.0)
    arrived = 0
    if PARTS > 1:
        apart = rows.to(tl.int64) * OUTPUTS
        tl.store(part_ptr + part * apart + offset_OK, sum_OK, mask=real_OK)
        # all threads have stored before one of them says so
        tl.debug_barrier()
        arrived = tl.atomic_add(arrived_ptr + block, 1, sem="acq_rel", scope="gpu")
    if arrived == PARTS - 1:
        if PARTS == 2:
            # of two it does not matter which is added to which; and not from the multiprocessor's own cache, which may
            # hold what was there before
            other_OK = part_ptr + (1 - part) * apart + offset_OK
            sum_OK += tl.load(other_OK, mask=real_OK, other=0.0, cache_modifier=".cg")
        elif PARTS > 2:
            sum_OK = tl.zeros([BLOCK_O, BLOCK_K], tl.float32)
            for one in tl.static_range(PARTS):
                sum_OK += tl.load(part_ptr + one * apart + offset_OK, mask=real_OK, other=0.0, cache_modifier=".cg")
        if PARTS > 1:
            tl.store(arrived_ptr + block, 0)
        if BIASED:
            sum_OK += tl.load(bias_ptr + o_O, mask=real_O, other=0.0).to(tl.float32)[:, None]
        total_OK = (h_OK.to(tl.float32) + sum_OK).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + offset_OK, total_OK, mask=real_OK)
        if SCALED:
            value_OK = total_OK.to(tl.float32)
            gain_O = tl.load(gain_ptr + o_O, mask=real_O, other=0.0).to(tl.float32)
            tl.store(scaled_ptr + offset_OK, (value_OK * gain_O[:, None]).to(scaled_ptr.dtype.element_ty), mask=real_OK)
            tl.store(square_ptr + block * rows + k_K, tl.sum(value_OK * value_OK, 0), mask=k_K < rows)


@triton.jit
def _pairs(
    x_ptr,
    weight_ptr,
    bias_ptr,
    square_ptr,
    rows,
    epsilon,
    INPUTS: tl.constexpr,
    PAIRS: tl.constexpr,
    APART: tl.constexpr,
    SQUARES: tl.constexpr,
    BIASED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """Of pairs of outputs that belong together, BLOCK_O // 2 numbers p [P], and both products [P, K], bias included.

    Of 2 * PAIRS outputs pair p is output ``p // APART * 2 * APART + p % APART`` and the one APART behind it.
    """
    # eight rows of firsts, then their seconds: a thread that has one of the sums of a tensor core's 16 has the other
    o_O = tl.arange(0, BLOCK_O)
    pair_O = tl.program_id(0) * (BLOCK_O // 2) + o_O // 16 * 8 + o_O % 8
    real_O = pair_O < PAIRS
    row_O = pair_O // APART * (2 * APART) + pair_O % APART + o_O // 8 % 2 * APART
    sum_OK = product_of_block(
        x_ptr, weight_ptr, row_O, real_O, rows, 0,
        INPUTS, 1, PAIRS % (BLOCK_O // 2) == 0, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, AHEAD, STAGES,
        2 * PAIRS, BITS, OFFSETS,
    )  # fmt: skip
    sum_OK = _normed(sum_OK, square_ptr, rows, epsilon, INPUTS, SQUARES, BLOCK_K, BLOCK_Q)
    if BIASED:
        sum_OK += tl.load(bias_ptr + row_O, mask=real_O, other=0.0).to(tl.float32)[:, None]
    both = tl.permute(tl.reshape(sum_OK, [BLOCK_O // 16, 2, 8, BLOCK_K]), (0, 2, 3, 1))
    first, second = tl.split(both)
    p_P = tl.program_id(0) * (BLOCK_O // 2) + tl.arange(0, BLOCK_O // 2)
    return p_P, tl.reshape(first, [BLOCK_O // 2, BLOCK_K]), tl.reshape(second, [BLOCK_O // 2, BLOCK_K])


@triton.jit(do_not_specialize=["rows"])
def gated_few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    square_ptr,
    out_ptr,
    rows,
    epsilon,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    SQUARES: tl.constexpr,
    BIASED: tl.constexpr,
    GELU: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """Outputs ``program_id(0)``, half of BLOCK_O: out [K, O] = activation(gate) * up, of x Wᵀ with x [K, I] and W
    [2O, I], the gate's rows first; O is WIDTH. SiLU, or GELU by its tanh form. The rest as :func:`few_rows_kernel`'s.
    """
    o_O, gate_OK, up_OK = _pairs(
        x_ptr, weight_ptr, bias_ptr, square_ptr, rows, epsilon,
        INPUTS, WIDTH, WIDTH, SQUARES, BIASED, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, BLOCK_Q, AHEAD, STAGES,
        BITS, OFFSETS,
    )  # fmt: skip
    k_K = tl.arange(0, BLOCK_K)
    out_OK = out_ptr + k_K.to(tl.int64)[None, :] * WIDTH + o_O[:, None]
    active_OK = gated(gate_OK, up_OK, GELU).to(out_ptr.dtype.element_ty)
    tl.store(out_OK, active_OK, mask=(o_O < WIDTH)[:, None] & (k_K < rows)[None, :])


@triton.jit(
    # these change from pass to pass
    do_not_specialize=["N", "rows"],
    do_not_specialize_on_alignment=["position_ptr", "slot_ptr", "write_at_ptr", "live_ptr"],
)
def rotated_few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    square_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    slot_ptr,
    write_at_ptr,
    live_ptr,
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    stride_ks,
    stride_kg,
    stride_kc,
    stride_vs,
    stride_vg,
    stride_vc,
    N,
    rows,
    epsilon,
    INPUTS: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    SQUARES: tl.constexpr,
    BIASED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """Elements ``program_id(0)``, half of BLOCK_O, of the lower halves of heads, and those of the upper halves: x Wᵀ of
    x [K, I] and W [(H + 2G)·D, I], rotated and stored as by
    :func:`~spec_sdk_backends.fused_block_kernels.rotate_and_store_kernel` (CACHED and TABLED, without a norm). The
    rest as :func:`few_rows_kernel`'s.
    """
    HALF: tl.constexpr = D // 2
    p_P, low_PK, high_PK = _pairs(
        x_ptr, weight_ptr, bias_ptr, square_ptr, rows, epsilon,
        INPUTS, (H + 2 * G) * HALF, HALF, SQUARES, BIASED, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, BLOCK_Q,
        AHEAD, STAGES, BITS, OFFSETS,
    )  # fmt: skip
    head_P = p_P // HALF
    d_P = p_P % HALF
    k_K = tl.arange(0, BLOCK_K)
    real_K = k_K < rows
    angle_PK = tl.load(position_ptr + k_K, mask=real_K, other=0).to(tl.int64)[None, :] * D + d_P[:, None]
    turned_PK = real_K[None, :] & (head_P < H + G)[:, None]
    cos_low_PK = tl.load(cos_ptr + angle_PK, mask=turned_PK, other=0.0).to(tl.float32)
    cos_high_PK = tl.load(cos_ptr + angle_PK + HALF, mask=turned_PK, other=0.0).to(tl.float32)
    sin_low_PK = tl.load(sin_ptr + angle_PK, mask=turned_PK, other=0.0).to(tl.float32)
    sin_high_PK = tl.load(sin_ptr + angle_PK + HALF, mask=turned_PK, other=0.0).to(tl.float32)
    turned_low_PK = low_PK * cos_low_PK - high_PK * sin_low_PK
    turned_high_PK = high_PK * cos_high_PK + low_PK * sin_high_PK

    of_q_PK = real_K[None, :] & (head_P < H)[:, None]
    q_PK = q_out_ptr + (k_K[None, :] * H + head_P[:, None]) * D + d_P[:, None]
    tl.store(q_PK, turned_low_PK.to(q_out_ptr.dtype.element_ty), mask=of_q_PK)
    tl.store(q_PK + HALF, turned_high_PK.to(q_out_ptr.dtype.element_ty), mask=of_q_PK)
    request_K = k_K // N
    column_K = k_K % N
    # of a row of padding nothing is stored
    stored_K = real_K & (column_K < tl.load(live_ptr + request_K, mask=real_K, other=0))
    column_K += tl.load(write_at_ptr + request_K, mask=real_K, other=0)
    slot_K = tl.load(slot_ptr + request_K, mask=real_K, other=0).to(tl.int64)
    # the heads of a long cache lie so far apart that 32 bits do not count them
    kv_head_P = (head_P - H).to(tl.int64)
    of_k_PK = stored_K[None, :] & ((head_P >= H) & (head_P < H + G))[:, None]
    of_v_PK = stored_K[None, :] & ((head_P >= H + G) & (head_P < H + 2 * G))[:, None]
    k_PK = k_out_ptr + (slot_K * stride_ks + column_K * stride_kc)[None, :] + (kv_head_P * stride_kg + d_P)[:, None]
    v_head_P = kv_head_P - G
    v_PK = v_out_ptr + (slot_K * stride_vs + column_K * stride_vc)[None, :] + (v_head_P * stride_vg + d_P)[:, None]
    tl.store(k_PK, turned_low_PK.to(k_out_ptr.dtype.element_ty), mask=of_k_PK)
    tl.store(k_PK + HALF, turned_high_PK.to(k_out_ptr.dtype.element_ty), mask=of_k_PK)
    tl.store(v_PK, low_PK.to(v_out_ptr.dtype.element_ty), mask=of_v_PK)
    tl.store(v_PK + HALF, high_PK.to(v_out_ptr.dtype.element_ty), mask=of_v_PK)
