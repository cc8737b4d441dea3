"""Launches the tree attention kernel: checks the tensors, chooses block sizes and splits.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, C key slots of the cache view, T tree slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.errors import UserError
from spec_sdk_backends.tree_attention_kernel import LOG2_E, combine_splits_kernel, tree_attention_kernel

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
# A split is worth its share of the combine kernel only with some blocks of keys to itself
MIN_KEY_BLOCKS_PER_SPLIT = 4
MAX_SPLITS = 64
# Elements of parts that four warps hold in registers, and rows up to which parallelism matters more
COMBINED_AT_ONCE = 8192
FEW_ROWS = 2048


@dataclass(frozen=True)
class Tiling:
    """Rows, keys and padded head dim of a block; warps per program; stages of the K/V pipeline."""

    rows: int
    keys: int
    head_dim: int
    warps: int
    stages: int

    @staticmethod
    def choose(rows: int, head_dim: int, dtype: torch.dtype) -> Tiling:
        """Tiling for ``rows`` = N*R rows a KV head: 16 (tl.dot's least) to 128, within 99 KiB of shared memory."""
        padded = max(16, triton.next_power_of_2(head_dim))
        wide = padded * dtype.itemsize > 256
        most_rows = 32 if padded * dtype.itemsize > 512 else 64 if dtype.itemsize == 4 or wide else 128
        block_rows = min(most_rows, max(16, triton.next_power_of_2(rows)))
        return Tiling(
            rows=block_rows,
            keys=32 if wide else 64,
            head_dim=padded,
            warps=8 if block_rows * padded >= 128 * 128 else 4,
            stages=1 if wide and dtype == torch.float32 else 2,
        )


def tree_attention(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    prefix: int | torch.Tensor,
    key_start_BT: torch.Tensor | None = None,
    query_start_BN: torch.Tensor | None = None,
    splits: int | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Attention of N tree nodes over the prefix and the visible tree slots. Returns [B, N, H, D]; scale 1/sqrt(D).

    Keys of sequence b lie in slots ``0 .. prefix_b - 1`` (prefix) and ``prefix_b .. prefix_b + T - 1`` (tree) of
    ``k_BGCD`` and ``v_BGCD``, which are read in place through any strides. ``prefix`` is one length or an integer
    tensor [B]; a tensor is not checked against C, since that would wait for the device. Tree slot ``s`` is visible to
    a query with pre-order number ``x`` iff ``start[s] <= x < end[s]``. The mask tensors are int32 (int64 also works,
    at twice the bytes), [B, T] or [T] when the sequences share a tree. Without starts the tree is closed and in
    pre-order: slot s starts at s, and the queries are the last N slots. ``splits``: programs that share the keys of a
    block of rows; None chooses by the size of the device. ``tiling``: block sizes other than :meth:`Tiling.choose`'s.
    A query that sees no key gets 0.

    Raises :class:`UserError` for a dtype or head dim without a kernel, ``ValueError`` for shapes that do not fit.
    """
    check_tensors(q_BNHD, k_BGCD, v_BGCD, key_end_BT, prefix, key_start_BT, query_start_BN)
    B, N, H, D = q_BNHD.shape
    G = k_BGCD.shape[1]
    R = H // G
    T = key_end_BT.shape[-1]
    out_BNHD = torch.empty((B, N, H, D), dtype=q_BNHD.dtype, device=q_BNHD.device)
    if out_BNHD.numel() == 0:
        return out_BNHD
    tiling = tiling or Tiling.choose(N * R, D, q_BNHD.dtype)
    row_blocks = triton.cdiv(N * R, tiling.rows)
    if splits is None:
        keys = (prefix if isinstance(prefix, int) else k_BGCD.shape[2] - T) + T
        splits = choose_splits(row_blocks * B * G, triton.cdiv(keys, tiling.keys), q_BNHD.device)
    if splits == 1:
        part_SBNHD, lse_SBNH = out_BNHD[None], out_BNHD
    else:
        part_SBNHD = torch.empty((splits, B, N, H, D), dtype=torch.float32, device=q_BNHD.device)
        lse_SBNH = torch.empty((splits, B, N, H), dtype=torch.float32, device=q_BNHD.device)
    key_end_BT = per_sequence(key_end_BT, B)
    closed = key_start_BT is None or query_start_BN is None
    key_start_BT = key_end_BT if key_start_BT is None else per_sequence(key_start_BT, B)
    query_start_BN = key_end_BT if query_start_BN is None else per_sequence(query_start_BN, B)
    tree_attention_kernel[(row_blocks, B * G, splits)](
        q_BNHD,
        k_BGCD,
        v_BGCD,
        key_start_BT,
        key_end_BT,
        query_start_BN,
        key_end_BT if isinstance(prefix, int) else prefix.contiguous(),
        part_SBNHD,
        lse_SBNH,
        *q_BNHD.stride(),
        *k_BGCD.stride(),
        *v_BGCD.stride(),
        key_start_BT.stride(0),
        key_end_BT.stride(0),
        query_start_BN.stride(0),
        *part_SBNHD.stride()[:4],
        N,
        T,
        prefix if isinstance(prefix, int) else 0,
        D**-0.5 * LOG2_E,
        G=G,
        R=R,
        D=D,
        CLOSED=closed,
        PREFIX_PER_SEQUENCE=not isinstance(prefix, int),
        SPLITS=splits,
        BLOCK_M=tiling.rows,
        BLOCK_K=tiling.keys,
        BLOCK_D=tiling.head_dim,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if splits > 1:
        rows = B * N * H
        block_s = triton.next_power_of_2(splits)
        block_rows, warps = combining(rows, block_s * tiling.head_dim)
        combine_splits_kernel[(triton.cdiv(rows, block_rows),)](
            part_SBNHD,
            lse_SBNH,
            out_BNHD,
            rows,
            D=D,
            SPLITS=splits,
            BLOCK_M=block_rows,
            BLOCK_S=block_s,
            BLOCK_D=tiling.head_dim,
            num_warps=warps,
        )
    return out_BNHD


def choose_splits(
    programs: int, key_blocks: int, device: torch.device, least_blocks: int = MIN_KEY_BLOCKS_PER_SPLIT
) -> int:
    """Enough splits for two programs on every multiprocessor, each with ``least_blocks`` or more; 1 off the GPU.

    A power of two: the kernels are compiled for each number of splits, and the prefix grows with every pass.
    """
    if device.type != "cuda":
        return 1
    wanted = 2 * torch.cuda.get_device_properties(device).multi_processor_count // programs
    most = max(1, min(wanted, key_blocks // least_blocks, MAX_SPLITS))
    return 1 << (most.bit_length() - 1)


def combining(rows: int, elements: int) -> tuple[int, int]:
    """Rows and warps of a program that combines splits, where ``elements`` of parts make a row.

    It holds all parts of its rows in registers; few rows get a program each, for the sake of parallelism.
    """
    block_rows = 1 if rows <= FEW_ROWS else min(16, max(1, COMBINED_AT_ONCE // elements))
    return block_rows, 8 if elements > COMBINED_AT_ONCE else 4


def per_sequence(numbers: torch.Tensor, batch: int) -> torch.Tensor:
    """[T] or [B, T] as [B, T] with unit stride along T; a shared row is not copied."""
    if numbers.stride(-1) != 1 and numbers.shape[-1] > 1:
        numbers = numbers.contiguous()
    return numbers.expand(batch, numbers.shape[-1])


def check_tensors(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    prefix: int | torch.Tensor,
    key_start_BT: torch.Tensor | None,
    query_start_BN: torch.Tensor | None,
) -> None:
    """Raises what :func:`tree_attention` says."""
    B, N, H, D = q_BNHD.shape
    if q_BNHD.dtype not in DTYPES:
        given = str(q_BNHD.dtype).removeprefix("torch.")
        raise UserError(f"backend=cuda: tree attention takes float16, bfloat16 or float32, not {given}")
    if D > MAX_HEAD_DIM:
        raise UserError(f"backend=cuda: tree attention takes head dims up to {MAX_HEAD_DIM}, not {D}")
    if k_BGCD.dtype != q_BNHD.dtype or v_BGCD.dtype != q_BNHD.dtype:
        raise ValueError(f"q, k and v must have one dtype, not {q_BNHD.dtype}, {k_BGCD.dtype} and {v_BGCD.dtype}")
    G, C = k_BGCD.shape[1:3]
    if k_BGCD.shape != v_BGCD.shape or k_BGCD.shape != (B, G, C, D) or H % G:
        raise ValueError(
            f"k {tuple(k_BGCD.shape)} and v {tuple(v_BGCD.shape)} must be [B, G, C, D] for q {tuple(q_BNHD.shape)}"
        )
    T = key_end_BT.shape[-1]
    if (key_start_BT is None) != (query_start_BN is None):
        raise ValueError("key_start and query_start go together: both for a growing tree, neither for a closed one")
    if key_start_BT is not None and key_start_BT.shape[-1] != T:
        raise ValueError(f"key_start has {key_start_BT.shape[-1]} slots and key_end {T}")
    if query_start_BN is not None and query_start_BN.shape[-1] != N:
        raise ValueError(f"query_start has {query_start_BN.shape[-1]} queries, q has {N}")
    if query_start_BN is None and N > T:
        raise ValueError(f"{N} queries of a closed tree of {T} slots")
    if isinstance(prefix, int) and not 0 <= prefix <= C - T:
        raise ValueError(f"a prefix of {prefix} and {T} tree slots do not fit into {C} keys")
