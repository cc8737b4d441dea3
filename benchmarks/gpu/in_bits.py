"""Products with few rows and weights in few bits: the backend's kernel, in many tiles, against dense products in
bfloat16, the backend's and the library's.

    python -m benchmarks.gpu.in_bits --output in_bits.json
    python -m benchmarks.gpu.in_bits --bits 5 6 8 --rows 1 --chosen            # other forms, without other tiles

Every call is a CUDA graph over different weights of one shape, more than the caches hold, one after the other. Kernels
are compiled in several processes first. ``share``: of the speed of a large copy, by bytes of weights alone. What the
launch behind takes to sum the parts is not in the times; the order is that of benchmarks.gpu.few_rows.

Legend: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from benchmarks.gpu.few_rows import fastest_of
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
from spec_sdk.bench.random_models import random_matrix
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import BITS
from spec_sdk_backends.few_rows import FewRows, product_of_few_rows
from spec_sdk_backends.few_rows_tiles import IN_BITS, FewRowsTile
from spec_sdk_backends.interleaved_products import InterleavedProjection
from spec_sdk_backends.interleaved_weights import InterleavedWeights, Interleaving

SCHEMA_VERSION = 1
SHARED = 220_000
"""Bytes of shared memory of a multiprocessor, for all its programs."""
MOST_WARPS = 32
"""Of a multiprocessor that are worth a try."""


def tiles_of(product: Product, rows: int, form: Interleaving, multiprocessors: int) -> list[FewRowsTile]:
    """Tiles whose programs give every multiprocessor warps, and fit it; a gate takes whole inputs."""
    found = []
    for outputs, stages, parts in itertools.product((16, 32, 64, 128), (3, 4), (1, 2, 4, 8)):
        warps = outputs // 16
        programs, steps = -(-product.rows // outputs) * parts, -(-product.inputs // IN_BITS) // parts
        # rows are read again for each block of outputs
        if steps < 2 or (product.gated and parts > 1) or rows > outputs:
            continue
        tile = FewRowsTile(outputs, IN_BITS, parts, stages, warps, 512)
        if tile.shared_bytes(rows, form, False, 9) > SHARED:
            continue
        if programs * warps / multiprocessors >= 2 and (parts == 1 or programs * warps <= MOST_WARPS * multiprocessors):
            found.append(tile)
    return found


def weights_of(product: Product, bits: int) -> InterleavedWeights:
    return InterleavedWeights.of(random_matrix(product.rows, product.inputs, bits, DEVICE))


Case = tuple[Product, int, int, FewRowsTile]
"""A product, rows, bits and a tile."""


def compile_all(cases: Sequence[Case]) -> None:
    """In this process, so that those that time find them compiled."""
    by_product: dict[tuple[Product, int], Projection] = {}
    for product, rows, bits, tile in cases:
        if (product, bits) not in by_product:
            by_product[product, bits] = InterleavedProjection(weights_of(product, bits))
        product_of_few_rows(FewRows(made(1, rows, product.inputs)), by_product[product, bits], tile)
    torch.cuda.synchronize()


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    began, rate = time.monotonic(), copy_tb_per_s()
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "in_bits",
        **device_facts(DEVICE),
        "copy_tb_per_s": rate,
        "products": [],
        "left_out": [],
    }
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    products = [product for shape in options.shapes for product in products_of(shape)]
    cases = [(product, rows, bits) for bits in options.bits for rows in options.rows for product in products]
    tiles: dict[tuple[Product, int, int], list[FewRowsTile]] = {
        (product, rows, bits): [] if options.chosen else tiles_of(product, rows, Interleaving(bits), multiprocessors)
        for product, rows, bits in cases
    }
    compiled = set[tuple[int, int]]()
    for product, rows, bits in cases:
        if time.monotonic() - began > options.seconds:
            report["left_out"].append(f"{product.name}, {rows} rows, {bits} bits")
            continue
        if (rows, bits) not in compiled and not options.chosen:
            compiled.add((rows, bits))
            compile_beside(
                compile_all, [(*case, tile) for case in cases if case[1:] == (rows, bits) for tile in tiles[case]]
            )
        weights = weights_of(product, bits)
        count = max(2, round(COPIED_BYTES / weights.nbytes))
        copies = [dataclasses.replace(weights, word=weights.word.clone()) for _ in range(count)]
        in_bits: list[Projection] = [InterleavedProjection(copy) for copy in copies]
        dense = [
            Projection(weights.dequantized(made(1).dtype)) for _ in range(max(2, round(COPIED_BYTES / product.nbytes)))
        ]
        rows_of = FewRows(made(1, rows, product.inputs))
        library = microseconds(lambda projection, x=rows_of.x_BNI: projection(x), dense)
        dense_us = microseconds(functools.partial(product_of_few_rows, rows_of), dense)
        chosen = microseconds(functools.partial(product_of_few_rows, rows_of), in_bits)
        best, shown = fastest_of(tiles[product, rows, bits], rows_of, in_bits)
        share = weights.nbytes / rate / 1e6 / chosen
        figures = {"library_us": library, "dense_us": dense_us, "chosen_us": chosen, "share": share}
        report["products"].append({**asdict(product), "pass_rows": rows, "bits": bits, **figures, "tiles": best})
        print(
            f"{product.name}, {rows} rows, {bits} bits: library {library:.1f} us, dense {dense_us:.1f}, ours "
            f"{chosen:.1f}, {share:.0%} of the memory's speed; of all tiles: {shown}",
            flush=True,
        )
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of_products("Products with weights in few bits, on a GPU", ("8b", "1b"), ("8b", "1b"))
    parser.add_argument("--rows", nargs="+", type=int, default=(1, 8, 64), help="of a pass, in this order")
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=(4,), help="of weights")
    parser.add_argument("--chosen", action="store_true", help="in the chosen tiles alone")
    return ended(measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
