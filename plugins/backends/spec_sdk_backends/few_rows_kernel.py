"""Products of a matrix with few rows in Triton, whose launches overlap with those before and behind them.

A pass over a tree reads every weight once, as one over a token does. A library's product of 64 rows is a launch that
waits for the one before to end, and often two: the inputs are divided among programs, whose sums a further launch adds
up. Here the sums of the parts are left to whatever reads the product (PARTS in
:mod:`spec_sdk_backends.fused_block_kernels`), and a program asks for its first weights while the launch before ends.

Bytes moved from and to device memory, with e bytes per element: O*I*e of weights, 4*S*K*O of the parts' sums if there
are several, else K*O*e. The rows, K*I*e for each of the O/BLOCK_O blocks of outputs, come from the L2 cache.

Legend: K rows, I inputs, O outputs, S parts of the inputs; in the kernel those of a block, and A lines of memory that
hold a part's first inputs.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import wait_for_the_launch_before


@triton.jit
def _to_cache(weight_ptr):
    """Ask for lines of memory to come to the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [weight_ptr.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["rows"])
def few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    part_ptr,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    BIASED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Outputs ``program_id(0)`` and part ``program_id(1)`` of the inputs: part [S, K, O] = x Wᵀ of x [K, I] and W
    [O, I], K at most BLOCK_K; the sum over S is the product. In float32, and rounded if ``part`` is of fewer bits.

    BIASED: bias [O] is added to the first part. OVERLAPPED: :mod:`spec_sdk_backends.dependent_launches`; AHEAD inputs
    of each output are asked for before it waits. STAGES: of the pipeline.
    """
    STEPS: tl.constexpr = (INPUTS + BLOCK_I * PARTS - 1) // (BLOCK_I * PARTS)
    EVEN: tl.constexpr = INPUTS % (BLOCK_I * PARTS) == 0 and OUTPUTS % BLOCK_O == 0
    part = tl.program_id(1)
    o_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    i_I = part * (STEPS * BLOCK_I) + tl.arange(0, BLOCK_I)
    k_K = tl.arange(0, BLOCK_K)
    real_O = o_O < OUTPUTS
    real_K = k_K < rows
    row_O = weight_ptr + o_O.to(tl.int64) * INPUTS
    if OVERLAPPED and AHEAD > 0:
        # a line is of 128 bytes
        LINE: tl.constexpr = 1024 // weight_ptr.dtype.element_ty.primitive_bitwidth
        first_A = part * (STEPS * BLOCK_I) + tl.arange(0, AHEAD // LINE) * LINE
        last_O = weight_ptr + tl.minimum(o_O, OUTPUTS - 1).to(tl.int64) * INPUTS
        _to_cache(last_O[:, None] + tl.minimum(first_A, INPUTS - 1)[None, :])
    wait_for_the_launch_before(OVERLAPPED)
    sum_OK = tl.zeros([BLOCK_O, BLOCK_K], tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        at_I = i_I + step * BLOCK_I
        real_OI = real_O[:, None] & (at_I < INPUTS)[None, :]
        real_KI = real_K[:, None] & (at_I < INPUTS)[None, :]
        if EVEN:
            w_OI = tl.load(row_O[:, None] + at_I[None, :], eviction_policy="evict_first")
            x_KI = tl.load(x_ptr + k_K[:, None] * INPUTS + at_I[None, :], mask=real_K[:, None], other=0.0)
        else:
            w_OI = tl.load(row_O[:, None] + at_I[None, :], mask=real_OI, other=0.0, eviction_policy="evict_first")
            x_KI = tl.load(x_ptr + k_K[:, None] * INPUTS + at_I[None, :], mask=real_KI, other=0.0)
        sum_OK = tl.dot(w_OI, tl.trans(x_KI), sum_OK, input_precision="ieee")
    if BIASED:
        of_first_O = tl.where(part == 0, o_O, OUTPUTS) < OUTPUTS
        sum_OK += tl.load(bias_ptr + o_O, mask=of_first_O, other=0.0).to(tl.float32)[:, None]
    part_OK = part_ptr + (part * rows + k_K).to(tl.int64)[None, :] * OUTPUTS + o_O[:, None]
    tl.store(part_OK, sum_OK.to(part_ptr.dtype.element_ty), mask=real_O[:, None] & real_K[None, :])
