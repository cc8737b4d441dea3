"""The small operations of a decoder block in Triton: three kernels take the place of some fifteen of torch's.

- ``add_rms_norm_kernel``: a residual is added to the hidden state, and the sum normalised for what reads it next;
- ``rotate_and_store_kernel``: QK norm, rotation, and K and V written where they belong, straight into the cache;
- ``gated_activation_kernel``: activation(gate) * up.

Each value is read once and written once, computed in float32 and rounded once (torch rounds after every step, so that
results differ from its by rounding). No length is known to the host: padding, slots and columns of the cache are read
on the device, and a launch depends on sizes alone, so that it may be captured in a graph. OVERLAPPED:
:mod:`spec_sdk_backends.dependent_launches`. What a product of few rows has written is summed where it is read: PARTS of
the same shape, one behind the other (:mod:`spec_sdk_backends.few_rows_kernel`).

Bytes moved from and to device memory, for K rows of e bytes per element: 4*K*M*e for sum and norm (3 where nothing is
added), 2*K*(H + 2G)*D*e for rotation and storing, 3*K*I*e for the gate; of each element of these two that is read in S
parts, 4*S.

Legend: B requests, N rows of a request, K = B*N rows, M model dim, I MLP dim, H query heads, G KV heads, D head dim;
P positions; in the kernels X heads of Q, K and V, and M, D, I of a block, padded to a power of two.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import wait_for_the_launch_before


@triton.jit
def sum_of_parts(part_ptr, apart, real, PARTS: tl.constexpr):
    """In float32, the sum over PARTS of what is at ``part_ptr`` and every ``apart`` elements behind it."""
    total = tl.load(part_ptr, mask=real, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(part_ptr + part * apart, mask=real, other=0.0).to(tl.float32)
    return total


@triton.jit
def add_rms_norm_kernel(
    h_ptr,
    added_ptr,
    gain_ptr,
    sum_ptr,
    out_ptr,
    epsilon,
    M: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Row ``program_id(0)`` of h [K, M]: out = gain * s / sqrt(mean(s²) + epsilon), with s = h, or h + added [K, M],
    which is stored in ``sum`` if ADD. The norm is of the sum as it is stored.
    """
    row = tl.program_id(0).to(tl.int64)
    m_M = tl.arange(0, BLOCK_M)
    real_M = m_M < M
    gain_M = tl.load(gain_ptr + m_M, mask=real_M, other=0.0)
    wait_for_the_launch_before(OVERLAPPED)
    h_M = tl.load(h_ptr + row * M + m_M, mask=real_M, other=0.0)
    if ADD:
        added_M = tl.load(added_ptr + row * M + m_M, mask=real_M, other=0.0)
        h_M = (h_M.to(tl.float32) + added_M.to(tl.float32)).to(h_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * M + m_M, h_M, mask=real_M)
    x_M = h_M.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x_M * x_M, 0) / M + epsilon)
    tl.store(out_ptr + row * M + m_M, (x_M * scale * gain_M.to(tl.float32)).to(out_ptr.dtype.element_ty), mask=real_M)


@triton.jit(
    # as for the tree attention kernel: these change from pass to pass
    do_not_specialize=["N"],
    do_not_specialize_on_alignment=["position_ptr", "slot_ptr", "write_at_ptr", "live_ptr"],
)
def rotate_and_store_kernel(
    qkv_ptr,
    q_gain_ptr,
    k_gain_ptr,
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
    epsilon,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    NORMED: tl.constexpr,
    CACHED: tl.constexpr,
    TABLED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_X: tl.constexpr,
    HALF_D: tl.constexpr,
    PARTS: tl.constexpr = 1,
):
    """Row ``program_id(0)`` of qkv [PARTS, K, H + 2G, D], and BLOCK_X of its heads: the H of Q, the G of K, those of V.

    NORMED: Q and K are normalised over D first, with their gains. Then they are rotated in the half-split layout by cos
    and sin [K, D], those of the rows; TABLED: [P, D], those of all positions, of which the rows have ``position`` [K].
    Q goes to ``q_out`` [K, H, D]; CACHED: K and V of live rows go into the cache [S, G, C, D], in the request's slot at
    its column ``write_at`` + row; otherwise those of all rows to [B, G, N, D], by the strides.
    """
    row = tl.program_id(0).to(tl.int64)
    head_X = tl.program_id(1) * BLOCK_X + tl.arange(0, BLOCK_X)
    half_D = tl.arange(0, HALF_D)
    in_head_D = half_D < D // 2
    real_XD = (head_X < H + 2 * G)[:, None] & in_head_D[None, :]
    offset_XD = (row * (H + 2 * G) + head_X)[:, None] * D + half_D[None, :]
    # these were there before the pass began
    turn = row
    if TABLED:
        turn = tl.load(position_ptr + row).to(tl.int64)
    angle_D = turn * D + half_D
    cos_low_D = tl.load(cos_ptr + angle_D, mask=in_head_D, other=0.0).to(tl.float32)
    cos_high_D = tl.load(cos_ptr + angle_D + D // 2, mask=in_head_D, other=0.0).to(tl.float32)
    sin_low_D = tl.load(sin_ptr + angle_D, mask=in_head_D, other=0.0).to(tl.float32)
    sin_high_D = tl.load(sin_ptr + angle_D + D // 2, mask=in_head_D, other=0.0).to(tl.float32)
    slot = row // N
    column = row % N
    stored = H + 2 * G
    if CACHED:
        # of a row of padding nothing is stored
        stored = tl.where(column < tl.load(live_ptr + slot), H + 2 * G, 0)
        column += tl.load(write_at_ptr + slot)
        slot = tl.load(slot_ptr + slot).to(tl.int64)
    wait_for_the_launch_before(OVERLAPPED)
    apart = tl.num_programs(0) * (H + 2 * G) * D
    low_XD = sum_of_parts(qkv_ptr + offset_XD, apart, real_XD, PARTS)
    high_XD = sum_of_parts(qkv_ptr + offset_XD + D // 2, apart, real_XD, PARTS)
    value_low_XD = low_XD
    value_high_XD = high_XD
    if NORMED:
        square_X = tl.sum(low_XD * low_XD, 1) + tl.sum(high_XD * high_XD, 1)
        scale_X1 = (1.0 / tl.sqrt_rn(square_X / D + epsilon))[:, None]
        of_q_X1 = (head_X < H)[:, None]
        q_low_1D = tl.load(q_gain_ptr + half_D, mask=in_head_D, other=0.0).to(tl.float32)[None, :]
        q_high_1D = tl.load(q_gain_ptr + D // 2 + half_D, mask=in_head_D, other=0.0).to(tl.float32)[None, :]
        k_low_1D = tl.load(k_gain_ptr + half_D, mask=in_head_D, other=0.0).to(tl.float32)[None, :]
        k_high_1D = tl.load(k_gain_ptr + D // 2 + half_D, mask=in_head_D, other=0.0).to(tl.float32)[None, :]
        low_XD = low_XD * scale_X1 * tl.where(of_q_X1, q_low_1D, k_low_1D)
        high_XD = high_XD * scale_X1 * tl.where(of_q_X1, q_high_1D, k_high_1D)
    turned_low_XD = low_XD * cos_low_D[None, :] - high_XD * sin_low_D[None, :]
    turned_high_XD = high_XD * cos_high_D[None, :] + low_XD * sin_high_D[None, :]

    of_q_XD = real_XD & (head_X < H)[:, None]
    q_XD = q_out_ptr + (row * H + head_X)[:, None] * D + half_D[None, :]
    tl.store(q_XD, turned_low_XD.to(q_out_ptr.dtype.element_ty), mask=of_q_XD)
    tl.store(q_XD + D // 2, turned_high_XD.to(q_out_ptr.dtype.element_ty), mask=of_q_XD)
    of_k_X = (head_X >= H) & (head_X < H + G) & (head_X < stored)
    of_v_X = (head_X >= H + G) & (head_X < stored)
    # the heads of a long cache lie so far apart that 32 bits do not count them
    kv_head_X = (head_X - H).to(tl.int64)
    k_X = slot * stride_ks + kv_head_X * stride_kg + column * stride_kc
    v_X = slot * stride_vs + (kv_head_X - G) * stride_vg + column * stride_vc
    k_XD = k_out_ptr + k_X[:, None] + half_D[None, :]
    v_XD = v_out_ptr + v_X[:, None] + half_D[None, :]
    of_k_XD = of_k_X[:, None] & in_head_D[None, :]
    of_v_XD = of_v_X[:, None] & in_head_D[None, :]
    tl.store(k_XD, turned_low_XD.to(k_out_ptr.dtype.element_ty), mask=of_k_XD)
    tl.store(k_XD + D // 2, turned_high_XD.to(k_out_ptr.dtype.element_ty), mask=of_k_XD)
    tl.store(v_XD, value_low_XD.to(v_out_ptr.dtype.element_ty), mask=of_v_XD)
    tl.store(v_XD + D // 2, value_high_XD.to(v_out_ptr.dtype.element_ty), mask=of_v_XD)


@triton.jit
def gated(gate, up, GELU: tl.constexpr):
    """activation(gate) * up, with SiLU, or GELU by its tanh form."""
    # GELU's tanh form is x * sigmoid(2y), with y = sqrt(2/pi) (x + 0.044715 x^3)
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + tl.exp(-inner)) * up


@triton.jit
def gated_activation_kernel(
    gate_up_ptr,
    out_ptr,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_I: tl.constexpr,
    PARTS: tl.constexpr = 1,
):
    """Row ``program_id(0)``, block ``program_id(1)``: out [K, I] = activation(gate) * up, of gate_up [PARTS, K, 2I]
    with the gate first; I is WIDTH. SiLU, or GELU by its tanh form.
    """
    row = tl.program_id(0).to(tl.int64)
    i_I = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    real_I = i_I < WIDTH
    wait_for_the_launch_before(OVERLAPPED)
    gate_ptr = gate_up_ptr + row * 2 * WIDTH + i_I
    apart = tl.num_programs(0) * 2 * WIDTH
    gate_I = sum_of_parts(gate_ptr, apart, real_I, PARTS)
    up_I = sum_of_parts(gate_ptr + WIDTH, apart, real_I, PARTS)
    tl.store(out_ptr + row * WIDTH + i_I, gated(gate_I, up_I, GELU).to(out_ptr.dtype.element_ty), mask=real_I)
