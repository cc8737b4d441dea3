"""A missed prediction's recovery in Triton, without asking the host: programs return at once where there was a hit.

What follows attention in a block (output projection, norm, gated MLP, both residuals) is computed on predicted
attention while the exact one is still computed, and once more, on the exact one, only where the verdict is a miss
(ALSpec, Alg. 1). Here the second time is always launched. Every program reads the verdicts first, one byte a request;
if all of them are hits, that is all it reads, and it writes nothing. So the launches are the same in every pass and can
be captured in a graph, where a branch of the host would end it.

A product reads its weights once for the rows of all requests, and stores the last result of the missed ones' alone.

Bytes moved on a miss: the weights, K*(I + O)*e of a product of K rows; on hits B bytes a program.

Legend: B requests, N rows of a request, K = B*N rows, M model dim, I inputs and O outputs of a product; in the kernels
M rows, I and O of a block, padded to a power of two.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.fused_block_kernels import add_rms_norm_kernel, gated_activation_kernel


@triton.jit
def _one_missed(hit_ptr, B, MOST_B: tl.constexpr):
    """Whether one of the B requests, at most MOST_B, has no hit."""
    b_B = tl.arange(0, MOST_B)
    hit_B = tl.load(hit_ptr + b_B, mask=b_B < B, other=1).to(tl.int32)
    return tl.min(hit_B, 0) == 0


@triton.jit(do_not_specialize=["B", "N"], do_not_specialize_on_alignment=["hit_ptr"])
def recovered_product_kernel(
    hit_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    added_ptr,
    out_ptr,
    B,
    N,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    LAST: tl.constexpr,
    MOST_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """BLOCK_O outputs ``program_id(0)`` of BLOCK_M rows ``program_id(1)``: out [K, O] = x [K, I] Wᵀ + bias, rounded to
    out's dtype. ADD: plus ``added`` [K, O], and rounded again. LAST: stored for rows of requests without a hit only.
    """
    if _one_missed(hit_ptr, B, MOST_B):
        row_M = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        real_M = row_M < B * N
        output_O = tl.program_id(0).to(tl.int64) * BLOCK_O + tl.arange(0, BLOCK_O)
        real_O = output_O < O
        i_I = tl.arange(0, BLOCK_I)
        acc_MO = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
        for first in range(0, I, BLOCK_I):
            there_I = first + i_I < I
            x_MI = tl.load(
                x_ptr + row_M[:, None] * I + first + i_I[None, :], mask=real_M[:, None] & there_I[None, :], other=0.0
            )
            weight_OI = tl.load(
                weight_ptr + output_O[:, None] * I + first + i_I[None, :],
                mask=real_O[:, None] & there_I[None, :],
                other=0.0,
            )
            acc_MO = tl.dot(x_MI, tl.trans(weight_OI), acc_MO, input_precision="tf32x3")
        if BIAS:
            acc_MO += tl.load(bias_ptr + output_O, mask=real_O, other=0.0).to(tl.float32)[None, :]
        at_MO = row_M[:, None] * O + output_O[None, :]
        stored_M = real_M
        if LAST:
            stored_M = real_M & (tl.load(hit_ptr + row_M // N, mask=real_M, other=1) == 0)
        stored_MO = stored_M[:, None] & real_O[None, :]
        if ADD:
            # as a product that is stored and added to later
            product_MO = acc_MO.to(out_ptr.dtype.element_ty).to(tl.float32)
            acc_MO = product_MO + tl.load(added_ptr + at_MO, mask=stored_MO, other=0.0).to(tl.float32)
        tl.store(out_ptr + at_MO, acc_MO.to(out_ptr.dtype.element_ty), mask=stored_MO)


@triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["hit_ptr"])
def recovered_norm_kernel(
    hit_ptr, h_ptr, gain_ptr, out_ptr, epsilon, B, M: tl.constexpr, MOST_B: tl.constexpr, BLOCK_M: tl.constexpr
):
    """:func:`add_rms_norm_kernel` of a row of h [K, M], to which nothing is added."""
    if _one_missed(hit_ptr, B, MOST_B):
        add_rms_norm_kernel(h_ptr, h_ptr, gain_ptr, h_ptr, out_ptr, epsilon, M, False, False, BLOCK_M)


@triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["hit_ptr"])
def recovered_activation_kernel(
    hit_ptr, gate_up_ptr, out_ptr, B, WIDTH: tl.constexpr, GELU: tl.constexpr, MOST_B: tl.constexpr,
    BLOCK_I: tl.constexpr,
):  # fmt: skip
    """:func:`gated_activation_kernel` of a block of a row."""
    if _one_missed(hit_ptr, B, MOST_B):
        gated_activation_kernel(gate_up_ptr, out_ptr, WIDTH, GELU, False, BLOCK_I)
