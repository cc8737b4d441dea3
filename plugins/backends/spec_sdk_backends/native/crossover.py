"""From how many rows on torch's own product is faster than the native kernel: measured once on a machine, and kept.

Torch needs dense weights in rows, so that putting them there is part of its time. It is faster where its library has
instructions that the native kernels lack.

Legend: N rows, O outputs, I inputs.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends.measured_once import measured_once
from spec_sdk_backends.native.kept_figures import place_of
from spec_sdk_backends.native.library import library, multiply_to
from spec_sdk_backends.native.panels import from_panels, to_panels
from spec_sdk_backends.native.side_by_side import SideBySide
from spec_sdk_backends.native.structures import Matrix

ROWS = (64, 128, 256, 512, 1024)
"""Sizes of passes that are compared. Up to the first the native kernel is used without asking, since trees are such."""
ANY = 1 << 40
"""As many rows as there may be: torch was not faster with any of these."""
SIZE = (1536, 768)
MATRICES = 4
TIMES = 5
CLEAR = 1.5
"""One that is so many times faster in its second call is not timed further; the first finds nothing prepared."""
MARGIN = 1.1
"""torch's product must be so many times faster: the native one keeps a row's result free of those beside it."""


def most_rows(dtype: torch.dtype, bits: int = 0, rounds: bool = False) -> int:
    """The most rows that the native kernel multiplies with dense weights, or with those of so many bits.

    ``rounds``: it rounds rows to 8 bits first. The same for all processes that share a cache directory.
    """
    return _most_rows(dtype, bits, rounds)


@functools.cache
def _most_rows(dtype: torch.dtype, bits: int, rounds: bool) -> int:
    telling = f"timing products with {f'{bits}-bit' if bits else 'dense'} weights in {str(dtype)[6:]}"
    return measured_once(_place(dtype, bits, rounds), (*ROWS, ANY), lambda: measure(dtype, bits, rounds), telling)


def measure(dtype: torch.dtype, bits: int = 0, rounds: bool = False) -> int:
    """The same, measured now."""
    native, plain = _dense(dtype) if bits == 0 else _quantized(bits, rounds)
    best = ROWS[0]
    for rows in ROWS[1:]:
        x_NI, y_NO = torch.randn(rows, SIZE[1]).to(dtype), torch.empty(rows, SIZE[0], dtype=dtype)
        native_s, plain_s = _seconds(native, plain, x_NI, y_NO)
        if native_s > MARGIN * plain_s:
            return best
        best = rows
    # expanding codes costs ever less beside more rows
    return best if bits else ANY


Product = Callable[[torch.Tensor, torch.Tensor], object]
"""Of rows x [N, I] with some matrices, into y [N, O] or a new tensor."""


def _dense(dtype: torch.dtype) -> tuple[Product, Product]:
    weights = [to_panels(torch.randn(SIZE).to(dtype), library()) for _ in range(MATRICES)]
    matrices = [Matrix.dense(panels, *SIZE, None) for panels in weights]
    return _native(matrices), lambda x_NI, y_NO: [F.linear(x_NI, from_panels(panels, *SIZE)) for panels in weights]


def _quantized(bits: int, rounds: bool) -> tuple[Product, Product]:
    weights = [SideBySide.of(quantize(torch.randn(SIZE), bits)) for _ in range(MATRICES)]
    matrices = [weight.matrix(None, rounds) for weight in weights]
    plain = [QuantizedProjection(weight, None, rounds) for weight in weights]
    return _native(matrices), lambda x_NI, y_NO: [product(x_NI) for product in plain]


def _native(matrices: list[Matrix]) -> Product:
    def product(x_NI: torch.Tensor, y_NO: torch.Tensor) -> None:
        for matrix in matrices:
            multiply_to(library(), matrix, x_NI, y_NO)

    return product


def _seconds(one: Product, other: Product, x_NI: torch.Tensor, y_NO: torch.Tensor) -> tuple[float, float]:
    """What each takes at its fastest, by turns."""
    fastest = [math.inf, math.inf]
    for times in range(1, TIMES + 1):
        for i, product in enumerate((one, other)):
            start = time.perf_counter()
            product(x_NI, y_NO)
            fastest[i] = min(fastest[i], time.perf_counter() - start)
        if times > 1 and max(fastest) > CLEAR * min(fastest):
            break
    return fastest[0], fastest[1]


def _place(dtype: torch.dtype, bits: int, rounds: bool) -> Path:
    return place_of("rows", f"{dtype} {bits} {rounds} {ROWS} {SIZE}")
