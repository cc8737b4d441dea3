"""Whether products with weights in few bits are faster than dense ones on a GPU: tried once, and kept.

Legend: O outputs, I inputs, R rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-untyped]

from spec_sdk.model.step_clock import StreamClock
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantizing import quantize
from spec_sdk.say import say
from spec_sdk_backends.interleaved_products import InterleavedProjection
from spec_sdk_backends.interleaved_weights import InterleavedWeights
from spec_sdk_backends.measured_once import measured_once, place_of

ROWS = (1, 16)
"""Of a pass over a token and of one over a small tree; both must be faster."""
SIZE = (8192, 4096)
COPIES = 6
"""Of a matrix, one read after the other: 110 MB of 4 bits, more than a GPU's caches hold."""
MARGIN = 0.9
"""The share of the dense product's time that one in few bits may take."""
CLOSE = 0.02
"""How far from the exact product it may be, over the largest."""
REPEATS = 7


@functools.cache
def gains(bits: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of rows of ``dtype`` with weights of so many bits are right on this GPU, and take less than
    MARGIN of a dense one's time. False for float32, which tensor cores do not multiply exactly.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return False
    name = torch.cuda.get_device_properties(device).name
    place = place_of("cuda", "in-bits", f"{name} {torch.__version__} {triton.__version__} {bits} {dtype} {SIZE}")
    telling = f"trying products with weights of {bits} bits on {name}"
    # triton launches on the current device, whatever the tensors say
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    try:
        with current:
            return bool(measured_once(place, (0, 1), lambda: tried(bits, dtype, device), telling))
    except Exception as error:  # whatever a compiler or driver raises: there are dense weights
        say(f"warning: products with weights of {bits} bits fail on {name}, which are expanded: {error}")
        return False


@torch.no_grad()
def tried(bits: int, dtype: torch.dtype, device: torch.device) -> bool:
    """The same, measured now."""
    numbers = torch.Generator().manual_seed(0)
    weights = InterleavedWeights.of(quantize(torch.randn(SIZE, generator=numbers), bits).to(device))
    copies = [dataclasses.replace(weights, word=weights.word.clone()) for _ in range(COPIES)]
    in_bits: list[Projection] = [InterleavedProjection(copy) for copy in copies]
    dense = [Projection(copy.dequantized(dtype)) for copy in copies]
    for rows in ROWS:
        x_RI = torch.randn(rows, SIZE[1], generator=numbers).to(device, dtype)
        expected_RO = F.linear(x_RI.float(), weights.dequantized(torch.float32))
        off_by = (in_bits[0](x_RI).float() - expected_RO).abs().max() / expected_RO.abs().max()
        if not off_by < CLOSE or seconds(in_bits, x_RI) > MARGIN * seconds(dense, x_RI):
            return False
    return True


def seconds(products: list[Projection], x_RI: torch.Tensor) -> float:
    """What a launch of all of them takes, captured as one, at the median."""

    def run() -> None:
        for product in products:
            product(x_RI)

    run()
    torch.cuda.synchronize(x_RI.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    clock, taken = StreamClock(x_RI.device), list[float]()
    for _ in range(REPEATS):
        began = clock.mark()
        graph.replay()
        taken.append(clock.seconds(began, clock.mark()))
    return statistics.median(taken)
