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
from spec_sdk_backends.few_rows import FewRows, FewRowsTile, product_of_few_rows

SCHEMA_VERSION = 1
SUMMING_US = 0.35
SHARED = 220_000
"""Bytes of shared memory that one program may take."""
SHARED_BY_TWO = 113_000
KEPT = 8
"""Tiles of a product that are reported, the fastest first."""


def tiles_of(product: Product, rows: int, multiprocessors: int) -> list[FewRowsTile]:
    """Tiles whose programs fill the device, with pipelines that are deep enough and fit."""
    found = []
    sizes = itertools.product((64, 128), (64, 128, 256), (3, 4, 5, 6), (4, 8), (1, 2, 4, 8))
    for outputs, inputs, stages, warps, parts in sizes:
        programs, steps = product.rows // outputs * parts, product.inputs // (inputs * parts)
        shared, once = (outputs + max(16, rows)) * inputs * 2 * stages, programs <= multiprocessors
        fits = 60_000 <= shared <= (SHARED if once else SHARED_BY_TWO) and inputs * stages <= 1024
        whole = product.inputs % (inputs * parts) == product.rows % outputs == 0 and steps >= 4
        if whole and fits and 0.7 <= programs / multiprocessors <= 3.5 and (warps == 4 or outputs == 128):
            ahead = min(product.inputs // parts, 512 if once else 256)
            found.append(FewRowsTile(outputs, inputs, parts, stages, warps, ahead))
    return found


def compile_all(cases: Sequence[tuple[Product, int, FewRowsTile]]) -> None:
    """In this process, so that those that time find them compiled."""
    by_product: dict[Product, Projection] = {}
    for product, rows, tile in cases:
        projection = by_product.setdefault(product, Projection(made(product.rows, product.inputs)))
        product_of_few_rows(FewRows(made(1, rows, product.inputs)), projection, tile)
    torch.cuda.synchronize()


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
        times = {
            tile: microseconds(functools.partial(product_of_few_rows, FewRows(x_1NI), tile=tile), projections)
            for tile in tiles[product, rows]
        }
        fastest = sorted(times, key=lambda tile: times[tile] + SUMMING_US * (tile.parts - 1))[:KEPT]
        best = [{**asdict(tile), "us": times[tile]} for tile in fastest]
        times_of_both = {"library_us": library, "chosen_us": chosen}
        report["products"].append({**asdict(product), "pass_rows": rows, **times_of_both, "tiles": best})
        shown = ", ".join(f"{t.outputs}x{t.inputs}/{t.parts}/{t.stages}/{t.warps} {times[t]:.1f}" for t in fastest[:5])
        said = f"{product.name}, {rows} rows: library {library:.1f} us, ours {chosen:.1f}; of all tiles: {shown}"
        print(said, flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of_products("Products with few rows, on a GPU", ("8b", "1b"), ("8b", "1b"))
    parser.add_argument("--rows", nargs="+", type=int, default=(64, 32, 16), help="of a pass, in this order")
    return ended(measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
