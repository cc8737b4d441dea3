"""Launches the tree attention kernel: checks the tensors, chooses block sizes and splits.

Legend: L layers, B batch or requests, N queries, H query heads, G KV heads, R = H/G, D head dim, C key slots of the
cache view, T tree slots, S cache slots (in ``part`` and ``lse``: splits), X blocks of rows, Y blocks of tree slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.contracts import PassInputs
from spec_sdk.errors import UserError
from spec_sdk.ops.types import PLAIN, AttentionSpec
from spec_sdk_backends.dependent_launches import overlapped
from spec_sdk_backends.tree_attention_kernel import (
    LOG2_E,
    combine_splits_kernel,
    tree_attention_kernel,
    visible_blocks_kernel,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
MAX_SHARED_DIM = 1024
"""The same of heads in half precision whose values are their keys, as of latents. In float32 a program's rows would not
fit into registers."""
# A split is worth its share of the combine kernel only with some keys to itself: fewer where a block of rows is small,
# and waits for its keys more than it works on them
KEYS_OF_A_SPLIT = 256
KEYS_OF_A_SMALL_SPLIT = 96
SMALL_BLOCK = 16
MAX_SPLITS = 64
# Most parts that a compiled kernel combines, of which it loads so many in any case
SPLITS_OF_A_KERNEL = (4, 16, MAX_SPLITS)
# Elements of parts that four warps hold in registers; and programs up to which each row has one of its own, and about
# as many as more rows have, since each begins and ends
COMBINED_AT_ONCE = 8192
COMBINING_PROGRAMS = 256
# Interval ends that a program holds in registers when it looks which blocks are visible
LOOKED_AT_ONCE = 1024


# Per bytes of an element and padded head dim: up to so many rows a KV head, rows of a block, keys of a block, stages,
# warps. All fit in 99 KiB of shared memory (compute capability 8.6; tests/kernels/compile_kernels.py prints what a
# kernel takes). Of one token, whose pass is a chain of launches that overlap, a program takes few registers: what the
# next launch begins with has room beside it (8B on an H200: 4.35 ms a pass with 64 keys and four warps, 4.02 with 32
# and two). Trees of 64 nodes have small blocks, so that there are more programs. Where there are many rows, what counts
# is how many programs a multiprocessor runs at once: two stages and four warps, although each step then waits for its
# copies (1,014 nodes of the paper's shape on an H200: 136 us with four stages and eight warps, 73 with these).
EVERY = 1 << 62
TILES: dict[tuple[int, int], tuple[tuple[int, int, int, int, int], ...]] = {
    (2, 64): ((16, 16, 32, 3, 2), (256, 64, 64, 3, 4), (768, 64, 32, 3, 4), (EVERY, 128, 64, 2, 4)),
    (2, 128): ((16, 16, 32, 3, 2), (32, 32, 64, 3, 4), (768, 64, 32, 3, 4), (EVERY, 128, 32, 2, 4)),
    (2, 256): ((32, 32, 32, 3, 4), (EVERY, 64, 16, 3, 8)),
    (4, 64): ((16, 16, 64, 3, 4), (EVERY, 64, 32, 3, 4)),
    (4, 128): ((16, 16, 32, 3, 4), (EVERY, 32, 16, 3, 4)),
    (4, 256): ((EVERY, 16, 16, 3, 8),),
    # values are the keys
    (2, 512): ((EVERY, 32, 32, 3, 8),),
    (2, 1024): ((EVERY, 16, 16, 3, 8),),
}
# Registers of a multiprocessor, of every NVIDIA GPU since 2014, and most that a thread has, as they are handed out
REGISTERS = 65536
THREAD_REGISTERS = 256
# Shared memory that the system takes for every block
SYSTEM_SHARED = 1024


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
        """Tiling for ``rows`` = N*R rows a KV head, in blocks of 16 (tl.dot's least) to 128."""
        padded = max(16, triton.next_power_of_2(head_dim))
        tiles = TILES[dtype.itemsize, max(64, padded)]
        _, most, keys, stages, warps = next(tile for tile in tiles if rows <= tile[0])
        return Tiling(min(most, max(SMALL_BLOCK, triton.next_power_of_2(rows))), keys, padded, warps, stages)

    @property
    def least_blocks(self) -> int:
        """Blocks of keys that a split has at least."""
        return -(-(KEYS_OF_A_SMALL_SPLIT if self.rows <= SMALL_BLOCK else KEYS_OF_A_SPLIT) // self.keys)

    def resident(self, itemsize: int, shared: int) -> int:
        """How many programs a multiprocessor with so many bytes of shared memory runs at once, at least."""
        # K and V of all stages but the one that is being used up, and room for the queries twice
        own = ((self.stages - 1) * 2 * self.keys + 2 * self.rows) * self.head_dim * itemsize + SYSTEM_SHARED
        return max(1, min(REGISTERS // (THREAD_REGISTERS * 32 * self.warps), shared // own))


def tree_attention(
    q_BNHD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    prefix: int,
    key_start_BT: torch.Tensor | None = None,
    query_start_BN: torch.Tensor | None = None,
    splits: int | None = None,
    tiling: Tiling | None = None,
    spec: AttentionSpec = PLAIN,
    positions: tuple[torch.Tensor, torch.Tensor] | None = None,
    visible: VisibleBlocks | None = None,
) -> torch.Tensor:
    """Attention of N tree nodes over the prefix and the visible tree slots, as ``spec`` says. Returns [B, N, H, D].

    Keys lie in slots ``0 .. prefix - 1`` (prefix) and ``prefix .. prefix + T - 1`` (tree) of ``k_BGCD`` and ``v_BGCD``,
    which are read in place through any strides. Tree slot ``s`` is visible to a query with pre-order number ``x`` iff
    ``start[s] <= x < end[s]``. The mask tensors are int32 (int64 also works, at twice the bytes), [B, T] or [T] when
    the sequences share a tree. Without starts the tree is closed and in pre-order: slot s starts at s, and the queries
    are the last N slots. ``splits``: programs that share the keys of a block of rows, at most MAX_SPLITS; None chooses
    by the size of the device. ``tiling``: block sizes other than :meth:`Tiling.choose`'s. ``positions``: those of tree
    slots and queries, needed for a window. ``visible``: what :func:`visible_blocks_of` made of the same tree, for all
    calls that share it; without it every program looks itself. A query that sees no key gets 0.

    Raises :class:`UserError` for a dtype or head dim without a kernel, ``ValueError`` for shapes that do not fit.
    """
    check_tensors(q_BNHD, k_BGCD, v_BGCD, key_end_BT, prefix, key_start_BT, query_start_BN)
    B = q_BNHD.shape[0]
    key_end_BT = per_sequence(key_end_BT, B)
    starts = None
    if key_start_BT is not None and query_start_BN is not None:
        starts = per_sequence(key_start_BT, B), per_sequence(query_start_BN, B)
    keys = prefix + key_end_BT.shape[1]
    if spec.window is not None and positions is None:
        raise ValueError("a window goes by positions: give those of the tree slots and of the queries")
    where = None if positions is None else (per_sequence(positions[0], B), per_sequence(positions[1], B))
    q_1BNHD, k_1BGCD, v_1BGCD = q_BNHD[None], k_BGCD[None], v_BGCD[None]
    return _launch(q_1BNHD, k_1BGCD, v_1BGCD, key_end_BT, starts, where, prefix, keys, spec, splits, tiling, visible)[0]


def cached_tree_attention(
    q_LBNHD: torch.Tensor,
    k_LSGCD: torch.Tensor,
    v_LSGCD: torch.Tensor,
    inputs: PassInputs,
    splits: int | None = None,
    spec: AttentionSpec = PLAIN,
    visible: VisibleBlocks | None = None,
) -> torch.Tensor:
    """Attention of a pass's rows over the cache of L layers, in one launch for all: [L, B, N, H, D]; padding gets 0.
    ``spec`` is that of all these layers.

    Every request has its own cache slot, prefix and tree; the kernel reads them where the inputs have them, on the
    device, and nothing here waits for it. They are not checked against the cache, for the same reason. ``splits`` as
    for :func:`tree_attention`; None chooses by ``inputs.columns``, or by the capacity C where that is unknown.
    ``visible``: :func:`visible_blocks` of the pass, which all of its layers may share.

    Raises what :func:`tree_attention` raises.
    """
    check_dtypes(q_LBNHD, k_LSGCD, v_LSGCD)
    L, B, N, H, D = q_LBNHD.shape
    S, G, C = k_LSGCD.shape[1:4]
    if k_LSGCD.shape != v_LSGCD.shape or k_LSGCD.shape != (L, S, G, C, D) or H % G:
        raise ValueError(
            f"k {tuple(k_LSGCD.shape)} and v {tuple(v_LSGCD.shape)} must be [L, S, G, C, D]"
            f" for q {tuple(q_LBNHD.shape)}"
        )
    if (inputs.batch, inputs.width) != (B, N):
        raise ValueError(f"q has {B} requests of {N} rows, the pass {inputs.batch} of {inputs.width}")
    starts = (inputs.key_start_BT, inputs.query_start_BN) if inputs.kind == "growing" else None
    keys = min(C, inputs.columns or C)
    where = inputs.key_position_BT, inputs.position_BN
    return _launch(
        q_LBNHD, k_LSGCD, v_LSGCD, inputs.key_end_BT, starts, where, inputs, keys, spec, splits, None, visible
    )


@dataclass(frozen=True)
class VisibleBlocks:
    """Which blocks of tree slots each block of rows sees: ``list_BXY`` int16, of X blocks of rows, a count and then as
    many numbers of blocks, rising. ``sizes``: B, N, R, T, and the rows and keys of a block that it was made for.
    """

    list_BXY: torch.Tensor
    sizes: tuple[int, int, int, int, int, int]

    @property
    def most(self) -> int:
        """How many blocks of tree slots there are."""
        return self.list_BXY.shape[2] - 1


def visible_blocks(inputs: PassInputs, tiling: Tiling, R: int) -> VisibleBlocks:
    """Of a pass, for all its layers and KV heads, each read by R query heads. One launch, and nothing waits for it."""
    starts = (inputs.key_start_BT, inputs.query_start_BN) if inputs.kind == "growing" else None
    own = inputs.prefix_B, inputs.write_at_B, inputs.live_B
    return _list(inputs.key_end_BT, starts, own, inputs.width, tiling, R)


def visible_blocks_of(
    key_end_BT: torch.Tensor,
    queries: int,
    tiling: Tiling,
    R: int,
    key_start_BT: torch.Tensor | None = None,
    query_start_BN: torch.Tensor | None = None,
) -> VisibleBlocks:
    """The same of trees [B, T] that are all of T slots and so many ``queries``; starts as :func:`tree_attention`'s."""
    starts = None
    if key_start_BT is not None and query_start_BN is not None:
        starts = key_start_BT, query_start_BN
    return _list(key_end_BT, starts, None, queries, tiling, R)


def _list(
    key_end_BT: torch.Tensor,
    starts: tuple[torch.Tensor, torch.Tensor] | None,
    own: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
    N: int,
    tiling: Tiling,
    R: int,
) -> VisibleBlocks:
    """``own``: prefixes, first columns and live rows of the sequences, where they differ."""
    B, T = key_end_BT.shape
    row_blocks, most = triton.cdiv(N * R, tiling.rows), triton.cdiv(T, tiling.keys)
    if most > torch.iinfo(torch.int16).max:
        raise ValueError(f"{T} tree slots are {most} blocks, more than a list can number")
    list_BXY = torch.empty((B, row_blocks, 1 + most), dtype=torch.int16, device=key_end_BT.device)
    key_start_BT, query_start_BN = starts or (key_end_BT, key_end_BT)
    visible_blocks_kernel[(row_blocks, B)](
        key_start_BT,
        key_end_BT,
        query_start_BN,
        *(own or (key_end_BT,) * 3),
        list_BXY,
        key_start_BT.stride(0),
        key_end_BT.stride(0),
        query_start_BN.stride(0),
        N,
        T,
        most,
        R=R,
        CLOSED=starts is None,
        CACHED=own is not None,
        BLOCK_M=tiling.rows,
        BLOCK_K=tiling.keys,
        AT_ONCE=max(1, LOOKED_AT_ONCE // tiling.keys),
        num_warps=4,
    )
    return VisibleBlocks(list_BXY, (B, N, R, T, tiling.rows, tiling.keys))


def _launch(
    q_LBNHD: torch.Tensor,
    k_LSGCD: torch.Tensor,
    v_LSGCD: torch.Tensor,
    key_end_BT: torch.Tensor,
    starts: tuple[torch.Tensor, torch.Tensor] | None,
    positions: tuple[torch.Tensor, torch.Tensor] | None,
    lengths: int | PassInputs,
    keys: int,
    spec: AttentionSpec,
    splits: int | None,
    tiling: Tiling | None,
    visible: VisibleBlocks | None,
) -> torch.Tensor:
    """``starts`` of the slots and the queries, for a growing tree; their ``positions``, for a window. ``lengths``: a
    prefix that all have, or the pass that says them. ``keys``: how many a sequence has, or at most has.
    """
    L, B, N, H, D = q_LBNHD.shape
    G = k_LSGCD.shape[2]
    R = H // G
    out_LBNHD = torch.empty((L, B, N, H, D), dtype=q_LBNHD.dtype, device=q_LBNHD.device)
    if out_LBNHD.numel() == 0:
        return out_LBNHD
    tiling = tiling or Tiling.choose(N * R, D, q_LBNHD.dtype)
    if visible is not None and visible.sizes != (B, N, R, key_end_BT.shape[1], tiling.rows, tiling.keys):
        raise ValueError(f"the visible blocks are of other sizes, {visible.sizes}")
    row_blocks = triton.cdiv(N * R, tiling.rows)
    if splits is None:
        seen = keys if spec.window is None else min(keys, spec.window + key_end_BT.shape[1])
        blocks = triton.cdiv(seen, tiling.keys)
        splits = choose_splits(row_blocks * L * B * G, blocks, q_LBNHD.device, tiling, q_LBNHD.dtype)
        if splits > 1 and key_end_BT.shape[1] <= tiling.keys and splits not in SPLITS_OF_A_KERNEL:
            # the kernel gives a tree of one block a split of its own; a further one costs nothing, unless a larger
            # kernel has to combine it
            splits += 1
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"{splits} splits: 1 to {MAX_SPLITS} can be combined")
    parts = splits if splits > 1 else 0
    part_SLBNHD = torch.empty((parts, L, B, N, H, D), dtype=torch.float32, device=q_LBNHD.device)
    lse_SLBNH = torch.empty((parts, L, B, N, H), dtype=torch.float32, device=q_LBNHD.device)
    key_start_BT, query_start_BN = starts or (key_end_BT, key_end_BT)
    key_position_BT, query_position_BN = positions or (key_end_BT, key_end_BT)
    sinks_H = spec.sinks_H(q_LBNHD.device)
    prefix, own = 0, (key_end_BT,) * 4
    if isinstance(lengths, int):
        prefix = lengths
    else:
        own = lengths.slot_B, lengths.prefix_B, lengths.write_at_B, lengths.live_B
    tree_attention_kernel[(row_blocks, L * B * G, splits)](
        q_LBNHD,
        k_LSGCD,
        v_LSGCD,
        key_start_BT,
        key_end_BT,
        query_start_BN,
        key_position_BT,
        query_position_BN,
        *own,
        key_end_BT if visible is None else visible.list_BXY,
        key_end_BT if sinks_H is None else sinks_H,
        out_LBNHD,
        part_SLBNHD,
        lse_SLBNH,
        *q_LBNHD.stride(),
        *k_LSGCD.stride(),
        *v_LSGCD.stride(),
        key_start_BT.stride(0),
        key_end_BT.stride(0),
        query_start_BN.stride(0),
        key_position_BT.stride(0),
        query_position_BN.stride(0),
        B,
        N,
        key_end_BT.shape[1],
        prefix,
        0 if visible is None else visible.most,
        splits,
        spec.window or 0,
        spec.scale_for(D) * LOG2_E,
        (spec.softcap or 0.0) * LOG2_E,
        G=G,
        R=R,
        D=D,
        CLOSED=starts is None,
        CACHED=not isinstance(lengths, int),
        LISTED=visible is not None,
        WINDOWED=spec.window is not None,
        CAPPED=spec.softcap is not None,
        SINKS=sinks_H is not None,
        ONE=values_are_keys(k_LSGCD, v_LSGCD),
        **overlapped(q_LBNHD.device),
        BLOCK_M=tiling.rows,
        BLOCK_K=tiling.keys,
        BLOCK_D=tiling.head_dim,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if splits > 1:
        combine_splits(part_SLBNHD, lse_SLBNH, out_LBNHD)
    return out_LBNHD


def combine_splits(part: torch.Tensor, lse: torch.Tensor, out: torch.Tensor) -> None:
    """Write to ``out`` […, D] what parts [splits, …, D] with base-2 log-sum-exps [splits, …] make together."""
    splits, D = part.shape[0], part.shape[-1]
    rows = out.numel() // D
    block_d = max(16, triton.next_power_of_2(D))
    block_s = next(most for most in SPLITS_OF_A_KERNEL if splits <= most)
    block_rows, warps = combining(rows, block_s * block_d)
    combine_splits_kernel[(triton.cdiv(rows, block_rows),)](
        part,
        lse,
        out,
        rows,
        splits,
        D=D,
        BLOCK_M=block_rows,
        BLOCK_S=block_s,
        BLOCK_D=block_d,
        num_warps=warps,
        **overlapped(out.device),
    )


def choose_splits(
    programs: int,
    key_blocks: int,
    device: torch.device,
    tiling: Tiling,
    dtype: torch.dtype,
    least_blocks: int | None = None,
) -> int:
    """As many splits as fill every multiprocessor once, each with ``least_blocks`` or more (None: as the tiling says);
    1 off the GPU.
    """
    if device.type != "cuda":
        return 1
    properties = torch.cuda.get_device_properties(device)
    at_once = tiling.resident(dtype.itemsize, properties.shared_memory_per_multiprocessor)
    wanted = at_once * properties.multi_processor_count // programs
    # a program holds all parts of a row in registers
    most = MAX_SPLITS if tiling.head_dim <= MAX_HEAD_DIM else SPLITS_OF_A_KERNEL[1]
    return max(1, min(wanted, key_blocks // (least_blocks or tiling.least_blocks), most))


def combining(rows: int, elements: int) -> tuple[int, int]:
    """Rows and warps of a program that combines splits, where ``elements`` of parts make a row.

    It holds all parts of its rows in registers, which limits them; few rows get a program each, for the sake of
    parallelism.
    """
    wanted = 1 << (rows // COMBINING_PROGRAMS).bit_length() >> 1
    block_rows = max(1, min(16, COMBINED_AT_ONCE // elements, wanted))
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
    check_dtypes(q_BNHD, k_BGCD, v_BGCD)
    B, N, H, D = q_BNHD.shape
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


def values_are_keys(k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether both are the same numbers in memory."""
    return k.data_ptr() == v.data_ptr() and k.stride() == v.stride()


def takes_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether heads of this size (last dimension) have a kernel."""
    most = MAX_SHARED_DIM if q.element_size() == 2 and values_are_keys(k, v) else MAX_HEAD_DIM
    return q.shape[-1] <= most


def check_dtypes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raises UserError for a dtype or head dim (last dimension) without a kernel, ValueError for several dtypes."""
    if q.dtype not in DTYPES:
        given = str(q.dtype).removeprefix("torch.")
        raise UserError(f"backend=cuda: tree attention takes float16, bfloat16 or float32, not {given}")
    if not takes_heads(q, k, v):
        raise UserError(f"backend=cuda: tree attention takes head dims up to {MAX_HEAD_DIM}, not {q.shape[-1]}")
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
