"""Which block sizes are fastest on this GPU: every tiling of the kernel, per number of nodes, head dim and dtype.

Tilings are compiled in several processes first.

Legend: N tree nodes, D head dim, R query heads per KV head.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from benchmarks.support.attention_inputs import DTYPES, Inputs, Shape
from benchmarks.support.compiling import compile_beside
from benchmarks.support.cuda_timing import median_replays
from spec_sdk_backends.tree_attention import Tiling, tree_attention

DEVICE = torch.device("cuda")
LEAST_NODES = 16
"""For which a tiling is compiled as for any other number."""
SHARED_BYTES = 227 * 1024
"""Shared memory that a block may have on compute capability 9.0."""


def candidates(rows: int, head_dim: int, dtype: torch.dtype) -> Iterator[Tiling]:
    """Tilings for ``rows`` = N*R rows a KV head whose tiles can fit. Some may still fail to compile."""
    padded = max(16, triton.next_power_of_2(head_dim))
    most_rows = max(16, triton.next_power_of_2(rows))
    for block_rows, keys, warps, stages in itertools.product((16, 32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        if block_rows > most_rows or (warps == 8 and block_rows < 64):
            continue
        tiles = block_rows + 2 * keys * (stages - 1)
        if tiles * padded * dtype.itemsize <= SHARED_BYTES:
            yield Tiling(block_rows, keys, padded, warps, stages)


def tiled(shape: Shape) -> tuple[int, int, torch.dtype]:
    """What a tiling is chosen by: rows a KV head, head dim and dtype."""
    return shape.nodes * shape.heads // shape.kv_heads, shape.head_dim, DTYPES[shape.dtype]


def compiled_alike(shape: Shape) -> tuple[Any, ...]:
    """What kernels are compiled for: shapes that have it in common share them."""
    return shape.dtype, shape.head_dim, shape.heads, shape.kv_heads


def compile_ahead(shapes: Sequence[Shape]) -> None:
    """Every tiling that :func:`sweep` tries for shapes that are compiled alike."""
    largest = max(shapes, key=lambda shape: shape.nodes)
    few_nodes = replace(largest, nodes=LEAST_NODES)
    compile_beside(compile_all, [(few_nodes, tiling) for tiling in candidates(*tiled(largest))])


def compile_all(cases: Sequence[tuple[Shape, Tiling]]) -> None:
    """In this process; those that fail to compile fail again where they would be timed."""
    for shape, tiling in cases:
        with contextlib.suppress(Exception):
            attention(Inputs.make(shape, DEVICE), tiling)
            torch.cuda.synchronize()


def attention(it: Inputs, tiling: Tiling) -> torch.Tensor:
    return tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, it.end_BN, it.prefix, tiling=tiling)


def sweep(shape: Shape, device: torch.device, rounds: int = 15) -> dict[str, Any]:
    """Device seconds of every candidate at this shape, fastest first, and of the tiling that is chosen today."""
    it = Inputs.make(shape, device)
    today = Tiling.choose(*tiled(shape))
    calls, failed = {}, {}
    for tiling in dict.fromkeys([today, *candidates(*tiled(shape))]):
        call = functools.partial(attention, it, tiling)
        try:
            call()
            torch.cuda.synchronize()
            calls[tiling] = call
        except Exception as error:  # too much shared memory or too many registers
            failed[str(tiling)] = f"{type(error).__name__}: {error}"[:120]
    names = {str(tiling): tiling for tiling in calls}
    device_s, plain_s = median_replays({str(tiling): call for tiling, call in calls.items()}, rounds)
    taken = {name: device_s.get(name, plain_s[name]) for name in names}
    ranked = sorted(taken, key=lambda name: taken[name])
    return {
        **shape.fields(),
        "today": {**asdict(today), "s": taken[str(today)]},
        "ranked": [{**asdict(names[name]), "s": taken[name]} for name in ranked],
        "failed": failed,
    }


COLUMNS = {
    "ratio": 5,
    "dtype": -8,
    "B": 2,
    "H": 2,
    "G": 2,
    "D": 3,
    "N": 4,
    "P": 4,
    "best: rows keys warps stages": 28,
    "today: rows keys warps stages": 28,
}


def shapes(quick: bool) -> list[Shape]:
    """Those that matter, bfloat16 and the paper's heads first; what is compiled alike stands together."""
    return [
        Shape(batch, heads, kv_heads, head_dim, nodes, prefix, dtype)
        for dtype, head_dim, (batch, heads, kv_heads, prefix) in itertools.product(
            ("bfloat16",) if quick else ("bfloat16", "float16", "float32"),
            (64,) if quick else (64, 128),
            ((10, 10, 10, 10), (1, 9, 3, 1024)),
        )
        for nodes in ((64, 1014) if quick else (1, 16, 64, 256, 1014, 4096))
    ]


def row(sweep: dict[str, Any]) -> list[str]:
    """The cells of COLUMNS for what :func:`sweep` found."""
    best, today = sweep["ranked"][0], sweep["today"]
    keys = ("batch", "heads", "kv_heads", "head_dim", "nodes", "prefix")
    tilings = [" ".join(str(tiling[key]) for key in ("rows", "keys", "warps", "stages")) for tiling in (best, today)]
    return [f"{today['s'] / best['s']:.2f}", sweep["dtype"], *(str(sweep[key]) for key in keys), *tilings]
