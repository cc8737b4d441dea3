"""Products with one row: the backend's kernel, with norm, gate and residual in it, in many tiles, against the same as
launches of their own around the library's product.

    python -m benchmarks.gpu.matrix_vector --output matrix_vector.json

Every call is a CUDA graph over different weights of one shape, more than the caches hold, one after the other. Kernels
are compiled in several processes first. ``share``: of the speed of a large copy, by bytes of weights alone.

Legend: I inputs, O outputs, M model dim.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.ceilings import copy_tb_per_s, median_ms
from benchmarks.support.compiling import compile_beside
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.random_models import SHAPES
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.fused_decoder import add_rms_norm, gated_mlp
from spec_sdk_backends.matrix_vector import MatrixVectorTile, matrix_vector

SCHEMA_VERSION = 1
EPSILON = 1e-5
COPIED_BYTES = 400e6
"""Of weights that a call reads at least, so that little of them is in a cache when it comes again."""
ELEMENTS = (512, 1024, 2048)
"""Of a tile that a warp has."""
REPEATS = 9
DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Product:
    """``outputs`` are those of the result: a gate's matrix has twice as many rows."""

    name: str
    inputs: int
    outputs: int
    normed: bool = False
    gated: bool = False
    added: bool = False

    @property
    def rows(self) -> int:
        return self.outputs * (2 if self.gated else 1)

    @property
    def nbytes(self) -> int:
        return self.rows * self.inputs * 2


def products_of(shape: str) -> list[Product]:
    fields = SHAPES[shape][1]
    width, middle = fields["hidden_size"], fields["intermediate_size"]
    heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
    of_heads = width // heads
    return [
        Product(f"{shape} qkv", width, (heads + 2 * kv_heads) * of_heads, normed=True),
        Product(f"{shape} output", heads * of_heads, width, added=True),
        Product(f"{shape} gate, up", width, middle, normed=True, gated=True),
        Product(f"{shape} down", middle, width, added=True),
    ]


def tiles_of(product: Product) -> list[MatrixVectorTile]:
    """Tiles of one to 16 outputs whose inputs are not all padding."""
    found = set()
    for warps, elements, outputs in itertools.product((2, 4, 8), ELEMENTS, (1, 2, 4, 8, 16)):
        inputs = warps * elements // outputs
        if 256 <= inputs < 2 * product.inputs and inputs <= 4096:
            found.add(MatrixVectorTile(outputs, inputs, warps))
    return sorted(found, key=str)


def made(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


class Weights:
    """Matrices of one product's shape, and what it reads beside them."""

    def __init__(self, product: Product, nbytes: float) -> None:
        self.product, count = product, max(2, round(nbytes / product.nbytes))
        self.projections = [Projection(made(product.rows, product.inputs)) for _ in range(count)]
        self.x_11I, self.gain_I = made(1, 1, product.inputs), made(product.inputs)
        self.added_11O = made(1, 1, product.outputs)
        self.identity = Identity(torch.empty(0))

    def by_kernel(self, projection: Projection, tile: MatrixVectorTile | None = None) -> torch.Tensor:
        product = self.product
        return matrix_vector(
            self.x_11I,
            projection,
            gain_I=self.gain_I if product.normed else None,
            epsilon=EPSILON,
            activation="silu" if product.gated else None,
            added_11O=self.added_11O if product.added else None,
            tile=tile,
        )

    def by_library(self, projection: Projection) -> torch.Tensor:
        """With the launches that a block of several rows has; a residual is added where the next norm is made."""
        x_11I = self.x_11I
        if self.product.normed:
            x_11I = add_rms_norm(x_11I, x_11I, self.gain_I, EPSILON)[1]
        if self.product.gated:
            return gated_mlp(GatedMLP(projection, self.identity), x_11I)
        return projection(x_11I)


class Identity(Projection):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def microseconds(call: Callable[[Projection], torch.Tensor], projections: Sequence[Projection]) -> float:
    """Of one call, median over replays of a graph of all."""
    for projection in projections[:2]:
        call(projection)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for projection in projections:
            call(projection)
    return 1e3 * median_ms(graph.replay, REPEATS) / len(projections)


def compile_all(cases: Sequence[tuple[Product, MatrixVectorTile]]) -> None:
    """In this process, so that those that time find them compiled."""
    by_product: dict[Product, Weights] = {}
    for product, tile in cases:
        weights = by_product.setdefault(product, Weights(product, 0))
        weights.by_kernel(weights.projections[0], tile)
    torch.cuda.synchronize()


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    began, rate = time.monotonic(), copy_tb_per_s()
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "matrix_vector",
        **device_facts(DEVICE),
        "copy_tb_per_s": rate,
        "products": [],
        "left_out": [],
    }
    products = [product for shape in options.shapes for product in products_of(shape)]
    if not options.chosen:
        compile_beside(compile_all, [(product, tile) for product in products for tile in tiles_of(product)])
    for product in products:
        if time.monotonic() - began > options.seconds:
            report["left_out"].append(product.name)
            continue
        weights = Weights(product, COPIED_BYTES)
        bound = product.nbytes / rate / 1e6
        library = microseconds(weights.by_library, weights.projections)
        chosen = microseconds(weights.by_kernel, weights.projections)
        tiles = {}
        for tile in () if options.chosen else tiles_of(product):
            call = functools.partial(weights.by_kernel, tile=tile)
            tiles[tile] = microseconds(call, weights.projections)
        fastest = sorted(tiles, key=lambda tile: tiles[tile])
        report["products"].append(
            {
                **asdict(product),
                "library_us": library,
                "chosen_us": chosen,
                "share": bound / chosen,
                "tiles": [{**asdict(tile), "us": tiles[tile]} for tile in fastest],
            }
        )
        shown = ", ".join(f"{t.outputs}x{t.inputs}/{t.warps} {tiles[t]:.1f}" for t in fastest[:6])
        print(
            f"{product.name}: library {library:.1f} us, ours {chosen:.1f} us ({bound / chosen:.0%} of copying)",
            *([f"of all tiles: {shown}"] if shown else []),
            sep="; ",
            flush=True,
        )
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def parser_of_products(description: str, shapes: Sequence[str], default: Sequence[str]) -> argparse.ArgumentParser:
    """The options of a benchmark of products."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shapes", nargs="+", choices=shapes, default=default)
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no further product after this")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    return parser


def ended(report: Mapping[str, Any]) -> int:
    """Say what there was no time for. The exit status: 1 where nothing was measured."""
    print("; ".join(f"left out: {name}, no time" for name in report["left_out"]) or "all products were measured")
    return int(not report["products"])


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of_products("Products with one row, on a GPU", tuple(SHAPES), ("8b", "1b", "smollm2"))
    parser.add_argument("--chosen", action="store_true", help="in the chosen tiles alone")
    return ended(measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
