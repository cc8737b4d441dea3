"""The tree attention kernel with a dense N x N mask in place of intervals (FlashSpecInfer's ablation, Fig. 5).

Everything else is the production kernel's: its step of the online softmax, its blocks, splits and order of work, and
blocks of keys that no query of a block sees are left out as there. Only where it reads interval ends, this one reads a
tile of the mask. It exists to be measured.

Legend: B batch, N queries = tree slots, H query heads, G KV heads, R = H/G, D head dim, P prefix, S = P + N keys; in
the kernel M rows of a block, K keys of a block.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.tree_attention import Tiling, choose_splits, combine_splits
from spec_sdk_backends.tree_attention_kernel import LOG2_E, _attend


@triton.jit(do_not_specialize=["N", "P"])
def full_mask_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    mask_ptr,
    out_ptr,
    lse_ptr,
    stride_qb,
    stride_qn,
    stride_qh,
    stride_kb,
    stride_kg,
    stride_kc,
    stride_vb,
    stride_vg,
    stride_vc,
    stride_mask_b,
    stride_mask_n,
    stride_os,
    stride_ob,
    stride_on,
    stride_oh,
    N,
    P,
    scale_log2,
    G: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    b = (tl.program_id(1) // G).to(tl.int64)
    g = (tl.program_id(1) % G).to(tl.int64)
    split = tl.program_id(2)
    row_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real_M = row_M < N * R
    node_M = row_M // R
    head_M = g * R + row_M % R
    d_D = tl.arange(0, BLOCK_D)
    real_MD = real_M[:, None] & (d_D[None, :] < D)
    q_row_M = node_M.to(tl.int64) * stride_qn + head_M * stride_qh
    q_MD = tl.load(q_ptr + b * stride_qb + q_row_M[:, None] + d_D[None, :], mask=real_MD, other=0.0)
    last_query = tl.max(tl.where(real_M, node_M, -1), 0)
    k_ptr += b * stride_kb + g * stride_kg
    v_ptr += b * stride_vb + g * stride_vg
    m_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_M = tl.zeros([BLOCK_M], tl.float32)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    share = tl.cdiv(tl.cdiv(P, BLOCK_K), SPLITS) * BLOCK_K
    for base in range(split * share, tl.minimum((split + 1) * share, P), BLOCK_K):
        slot_K = base + tl.arange(0, BLOCK_K)
        exists_K = slot_K < P
        visible_MK = tl.broadcast_to(exists_K[None, :], (BLOCK_M, BLOCK_K))
        m_M, l_M, acc_MD = _attend(
            q_MD, k_ptr, v_ptr, stride_kc, 1, stride_vc, 1, slot_K, exists_K, visible_MK,
            m_M, l_M, acc_MD, scale_log2, D, BLOCK_D,
        )  # fmt: skip

    slots = tl.minimum(N, last_query + 1)
    share = tl.cdiv(tl.cdiv(slots, BLOCK_K), SPLITS) * BLOCK_K
    mask_row_M = b * stride_mask_b + node_M.to(tl.int64) * stride_mask_n
    for base in range(split * share, tl.minimum((split + 1) * share, slots), BLOCK_K):
        slot_K = base + tl.arange(0, BLOCK_K)
        exists_K = slot_K < N
        visible_MK = tl.load(
            mask_ptr + mask_row_M[:, None] + slot_K[None, :], mask=real_M[:, None] & exists_K[None, :], other=0
        ) != 0  # fmt: skip
        if tl.max(tl.max(visible_MK.to(tl.int32), 1), 0) > 0:
            m_M, l_M, acc_MD = _attend(
                q_MD, k_ptr, v_ptr, stride_kc, 1, stride_vc, 1, P + slot_K, exists_K, visible_MK,
                m_M, l_M, acc_MD, scale_log2, D, BLOCK_D,
            )  # fmt: skip

    out_MD = acc_MD / tl.where(l_M == 0.0, 1.0, l_M)[:, None]
    out_row_M = split.to(tl.int64) * stride_os + b * stride_ob + node_M.to(tl.int64) * stride_on + head_M * stride_oh
    tl.store(out_ptr + out_row_M[:, None] + d_D[None, :], out_MD.to(out_ptr.dtype.element_ty), mask=real_MD)
    if SPLITS > 1:
        lse_M = tl.where(l_M == 0.0, float("-inf"), m_M + tl.log2(tl.where(l_M == 0.0, 1.0, l_M)))
        tl.store(lse_ptr + out_row_M // D, lse_M, mask=real_M)


def full_mask_attention(
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    visible_BNN: torch.Tensor,
    prefix: int,
    splits: int | None = None,
) -> torch.Tensor:
    """Attention over the prefix and the slots where ``visible_BNN`` (uint8 or bool) is not 0; [B, N, H, D]."""
    B, N, H, D = q_BNHD.shape
    G = k_BGSD.shape[1]
    R = H // G
    tiling = Tiling.choose(N * R, D, q_BNHD.dtype)
    row_blocks = triton.cdiv(N * R, tiling.rows)
    if splits is None:
        blocks = triton.cdiv(prefix + N, tiling.keys)
        splits = choose_splits(row_blocks * B * G, blocks, q_BNHD.device, tiling, q_BNHD.dtype)
    out_BNHD = torch.empty((B, N, H, D), dtype=q_BNHD.dtype, device=q_BNHD.device)
    part_SBNHD, lse_SBNH = out_BNHD[None], out_BNHD
    if splits > 1:
        part_SBNHD = torch.empty((splits, B, N, H, D), dtype=torch.float32, device=q_BNHD.device)
        lse_SBNH = torch.empty((splits, B, N, H), dtype=torch.float32, device=q_BNHD.device)
    full_mask_kernel[(row_blocks, B * G, splits)](
        q_BNHD, k_BGSD, v_BGSD, visible_BNN.view(torch.uint8), part_SBNHD, lse_SBNH,
        *q_BNHD.stride()[:3], *k_BGSD.stride()[:3], *v_BGSD.stride()[:3], *visible_BNN.stride()[:2],
        *part_SBNHD.stride()[:4], N, prefix, D**-0.5 * LOG2_E,
        G=G, R=R, D=D, SPLITS=splits, BLOCK_M=tiling.rows, BLOCK_K=tiling.keys, BLOCK_D=tiling.head_dim,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    if splits > 1:
        combine_splits(part_SBNHD, lse_SBNH, out_BNHD)
    return out_BNHD
