"""Products with few rows: the backend's kernel, in many tiles, against the library's product.

    python -m benchmarks.gpu.few_rows --output few_rows.json

Every call is a CUDA graph over different weights of one shape, more than the caches hold, one after the other. Kernels
are compiled in several processes first. What the launch behind takes to sum the parts is not in the times; the order
takes SUMMING_US for each part but the first.

Legend: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.gpu.ceilings import copy_tb_per_s
from benchmarks.gpu.matrix_vector import (
    COPIED_BYTES,
    DEVICE,
    Product,
    ended,
    made,
    microseconds,
    parser_of_products,
    products_of,
)
from benchmarks.support.compiling import compile_beside
from spec_sdk.bench.machine import device_facts
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.few_rows import FewRows, product_of_few_rows
from spec_sdk_backends.few_rows_tiles import FewRowsTile

SCHEMA_VERSION = 1
SUMMING_US = 0.35
SHARED = 220_000
"""Bytes of shared memory of a multiprocessor, for all its programs."""
ON_THEIR_WAY = range(44_000, 180_000)
"""Bytes of weights that the programs of a multiprocessor wait for at once; with fewer, memory is idle."""
KEPT = 8
"""Tiles of a product that are reported, the fastest first."""


def tiles_of(product: Product, rows: int, multiprocessors: int) -> list[FewRowsTile]:
    """Tiles whose programs fill the device and its memory's queues; a gate takes whole inputs."""
    found = []
    sizes = itertools.product((16, 32, 64, 128), (64, 128, 256), (3, 4, 5, 6), (1, 2, 4, 8), (1, 2, 4, 8))
    for outputs, inputs, stages, warps, parts in sizes:
        programs, steps = product.rows // outputs * parts, product.inputs // (inputs * parts)
        if product.inputs % (inputs * parts) or product.rows % outputs or steps < 4 or (product.gated and parts > 1):
            continue
        # a warp's tensor cores take 16 outputs, or 64 of four warps at once
        if warps not in ((outputs // 16,) if outputs <= 64 else (4, 8)):
            continue
        tile = FewRowsTile(outputs, inputs, parts, stages, warps, 256 if rows <= 32 < outputs else 512)
        at_once = min(SHARED // shared_bytes(tile, rows), -(-programs // multiprocessors))
        waited_for = at_once * outputs * inputs * 2 * (stages - 1)
        # rows are read again for each block of outputs
        if programs < 0.7 * multiprocessors or waited_for not in ON_THEIR_WAY or rows > outputs:
            continue
        if parts > 1 and programs > 2.5 * multiprocessors:
            continue
        if inputs * stages > (1280 if outputs < 64 else 1024) or (outputs < 64 and inputs < 256 and stages < 5):
            continue
        found.append(tile)
    return found


def shared_bytes(tile: FewRowsTile, rows: int) -> int:
    """Of shared memory that a program takes: what tensor cores of four warps read stays there while they do."""
    buffers = tile.stages if tile.outputs >= 64 else tile.stages - 1
    return (tile.outputs + tile.rows_of_block(rows)) * tile.inputs * 2 * buffers


def compile_all(cases: Sequence[tuple[Product, int, FewRowsTile]]) -> None:
    """In this process, so that those that time find them compiled."""
    by_product: dict[Product, Projection] = {}
    for product, rows, tile in cases:
        projection = by_product.setdefault(product, Projection(made(product.rows, product.inputs)))
        product_of_few_rows(FewRows(made(1, rows, product.inputs)), projection, tile)
    torch.cuda.synchronize()


def fastest_of(
    tiles: Sequence[FewRowsTile], rows: FewRows, projections: Sequence[Projection]
) -> tuple[list[dict[str, Any]], str]:
    """The tiles that multiply these rows fastest, with their microseconds, and a few of them to be read."""
    times = {tile: microseconds(functools.partial(product_of_few_rows, rows, tile=tile), projections) for tile in tiles}
    fastest = sorted(times, key=lambda tile: times[tile] + SUMMING_US * (tile.parts - 1))[:KEPT]
    shown = ", ".join(f"{t.outputs}x{t.inputs}/{t.parts}/{t.stages}/{t.warps} {times[t]:.1f}" for t in fastest[:5])
    return [{**asdict(tile), "us": times[tile]} for tile in fastest], shown


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "few_rows",
        **device_facts(DEVICE),
        "copy_tb_per_s": copy_tb_per_s(),
        "products": [],
        "left_out": [],
    }
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    cases = [(product, rows) for rows in options.rows for shape in options.shapes for product in products_of(shape)]
    tiles, compiled = {case: tiles_of(*case, multiprocessors) for case in cases}, set[int]()
    for product, rows in cases:
        if time.monotonic() - began > options.seconds:
            report["left_out"].append(f"{product.name}, {rows} rows")
            continue
        if rows not in compiled:
            compiled.add(rows)
            compile_beside(compile_all, [(*case, tile) for case in cases if case[1] == rows for tile in tiles[case]])
        count = max(2, round(COPIED_BYTES / product.nbytes))
        projections = [Projection(made(product.rows, product.inputs)) for _ in range(count)]
        x_1NI = made(1, rows, product.inputs)
        library = microseconds(lambda projection, x=x_1NI: projection(x), projections)
        chosen = microseconds(functools.partial(product_of_few_rows, FewRows(x_1NI)), projections)
        best, shown = fastest_of(tiles[product, rows], FewRows(x_1NI), projections)
        times_of_both = {"library_us": library, "chosen_us": chosen}
        report["products"].append({**asdict(product), "pass_rows": rows, **times_of_both, "tiles": best})
        said = f"{product.name}, {rows} rows: library {library:.1f} us, ours {chosen:.1f}; of all tiles: {shown}"
        print(said, flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of_products("Products with few rows, on a GPU", ("8b", "1b"), ("8b", "1b"))
    parser.add_argument("--rows", nargs="+", type=int, default=(64, 32, 8), help="of a pass, in this order")
    return ended(measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
