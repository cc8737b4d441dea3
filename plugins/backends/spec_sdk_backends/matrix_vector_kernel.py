"""Products of a matrix with one row in Triton, with what stands before and behind them in a decoder block.

A pass over one token reads every weight once and does little else: its time is that of the weights' bytes, and of every
launch's beginning and end. Libraries' products of one row get 60 to 90 % of the memory's speed, and a block has a norm,
two residuals and a gate besides. Here a norm is part of the product that reads it, and gate and residual of the product
that writes them: six or seven launches a block with attention, in the place of nine or ten.

Bytes moved from and to device memory, with e bytes per element: O*I*e of weights (twice that with a gate); x and gain,
2*I*e for each program, come from the L2 cache.

Legend: I inputs, O outputs; in the kernel those of a block, padded to a power of two.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import wait_for_the_launch_before
from spec_sdk_backends.fused_block_kernels import gated


@triton.jit
def matrix_vector_kernel(
    x_ptr,
    weight_ptr,
    gain_ptr,
    bias_ptr,
    added_ptr,
    out_ptr,
    epsilon,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    ADDED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Outputs ``program_id(0)`` of out [O] = W x + bias, in float32 and rounded once, of W [O, I].

    NORMED: x is normalised first, ``gain * x / sqrt(mean(x²) + epsilon)``. GATED: W is [2O, I], the gate's rows first;
    out = activation(gate) * up, with SiLU, or GELU by its tanh form. ADDED: ``added`` [O] is added to what is otherwise
    written. OVERLAPPED: :mod:`spec_sdk_backends.dependent_launches`; the first weights are asked for before it waits.
    """
    o_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    i_I = tl.arange(0, BLOCK_I)
    real_O = o_O < OUTPUTS
    gate_OI = weight_ptr + o_O.to(tl.int64)[:, None] * INPUTS + i_I[None, :]
    up_OI = gate_OI + OUTPUTS * INPUTS
    real_OI = real_O[:, None] & (i_I < INPUTS)[None, :]
    # the weights of the next step are on their way while those of this one are multiplied
    w_OI = tl.load(gate_OI, mask=real_OI, other=0.0, eviction_policy="evict_first")
    v_OI = w_OI
    if GATED:
        v_OI = tl.load(up_OI, mask=real_OI, other=0.0, eviction_policy="evict_first")
    wait_for_the_launch_before(OVERLAPPED)
    y_OI = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    z_OI = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    square_I = tl.zeros([BLOCK_I], tl.float32)
    for first in range(0, INPUTS, BLOCK_I):
        next_w_OI = w_OI
        next_v_OI = v_OI
        if INPUTS > BLOCK_I:
            ahead = first + BLOCK_I
            real_OI = real_O[:, None] & (ahead + i_I < INPUTS)[None, :]
            next_w_OI = tl.load(gate_OI + ahead, mask=real_OI, other=0.0, eviction_policy="evict_first")
            if GATED:
                next_v_OI = tl.load(up_OI + ahead, mask=real_OI, other=0.0, eviction_policy="evict_first")
        real_I = first + i_I < INPUTS
        x_I = tl.load(x_ptr + first + i_I, mask=real_I, other=0.0).to(tl.float32)
        if NORMED:
            square_I += x_I * x_I
            x_I = x_I * tl.load(gain_ptr + first + i_I, mask=real_I, other=0.0).to(tl.float32)
        y_OI += w_OI.to(tl.float32) * x_I[None, :]
        if GATED:
            z_OI += v_OI.to(tl.float32) * x_I[None, :]
        w_OI = next_w_OI
        v_OI = next_v_OI
    y_O = tl.sum(y_OI, 1)
    scale = 1.0
    if NORMED:
        scale = 1.0 / tl.sqrt_rn(tl.sum(square_I, 0) / INPUTS + epsilon)
        y_O = y_O * scale
    if BIASED:
        y_O += tl.load(bias_ptr + o_O, mask=real_O, other=0.0).to(tl.float32)
    if GATED:
        z_O = tl.sum(z_OI, 1) * scale
        if BIASED:
            z_O += tl.load(bias_ptr + OUTPUTS + o_O, mask=real_O, other=0.0).to(tl.float32)
        y_O = gated(y_O, z_O, GELU)
    if ADDED:
        y_O += tl.load(added_ptr + o_O, mask=real_O, other=0.0).to(tl.float32)
    tl.store(out_ptr + o_O, y_O.to(out_ptr.dtype.element_ty), mask=real_O)
