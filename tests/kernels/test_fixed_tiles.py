"""Linear layers in tiles of a fixed size: right against float64, and a row's bits do not depend on the others.

Legend: K rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantizing import quantize
from spec_sdk.testing.same_bits import same_bits

pytest.importorskip("triton")

from spec_sdk_backends.deterministic_ops import DeterministicOps
from spec_sdk_backends.fixed_tile_products import FixedTileProjection, multiply, tiles_of
from spec_sdk_backends.recovery_kernels import recovered_product_kernel
from tests.support.skips import interpreted

OPS = DeterministicOps()
WEIGHTS = ["dense", "8 bits", "6 bits", "5 bits", "4 bits"]
CLOSE = 1e-3 if torch.cuda.is_available() else 1e-5
"""A GPU multiplies float32 in three products of tf32."""
ROWS = (1, 2, 15, 16, 17, 33, 70)
Product = Callable[[torch.Tensor], torch.Tensor]


def random(*shape: int, seed: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def layer(weights: str, inputs: int, outputs: int, bias: bool, device: torch.device) -> Projection:
    weight_OI = random(outputs, inputs, seed=0, device=device)
    bias_O = random(outputs, seed=1, device=device) if bias else None
    if weights == "dense":
        return OPS.projection(weight_OI, bias_O)
    return OPS.quantized_projection(quantize(weight_OI, int(weights[0])), bias_O)


@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(96, 40, True), (160, 300, False)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_products(weights: str, inputs: int, outputs: int, bias: bool, device: torch.device) -> None:
    made = layer(weights, inputs, outputs, bias, device)
    bias_O = None if made.bias_O is None else made.bias_O.double()
    for rows in (1, 18, 70):
        x_KI = random(rows, inputs, seed=2, device=device)
        expected = F.linear(x_KI.double(), made.weight_OI.double(), bias_O)
        found = made(x_KI.view(1, rows, inputs))
        assert found.shape == (1, rows, outputs) and found.dtype == x_KI.dtype
        torch.testing.assert_close(found[0].double(), expected, atol=CLOSE, rtol=CLOSE)
    assert made(x_KI[:0]).shape == (0, outputs)


def test_inputs_that_are_no_whole_block(device: torch.device) -> None:
    made = layer("dense", 37, 21, True, device)
    x_KI = random(5, 37, seed=2, device=device)
    expected = F.linear(x_KI.double(), made.weight_OI.double(), made.bias_O.double())  # type: ignore[union-attr]
    torch.testing.assert_close(made(x_KI).double(), expected, atol=CLOSE, rtol=CLOSE)


def rows_that_differ(product: Product, inputs: int, device: torch.device) -> list[tuple[int, int]]:
    """Rows, and how many there were with them, whose bits are not those that the row has alone."""
    every_KI = random(max(ROWS), inputs, seed=3, device=device)
    alone = [product(every_KI[i : i + 1])[0] for i in range(max(ROWS))]
    found = []
    for count in ROWS:
        for first in {0, max(ROWS) - count}:
            together = product(every_KI[first : first + count])
            found += [(i, count) for i in range(count) if not same_bits(together[i], alone[first + i])]
    return found


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_row_is_the_same_in_every_pass(weights: str, device: torch.device) -> None:
    """At any place among others, in one, two or four tiles a program."""
    assert {tiles_of(rows) for rows in ROWS} == {1, 2, 4}
    assert rows_that_differ(layer(weights, 160, 48, True, device), 160, device) == []


def tiled_by_rows(x_KI: torch.Tensor) -> torch.Tensor:
    """A kernel that is right, and whose tile is as high as there are rows, and the deeper."""
    weight_OI, rows = random(48, 160, seed=0, device=x_KI.device), len(x_KI)
    out = x_KI.new_empty((rows, 48))
    block = 1 << (rows - 1).bit_length()
    hit_B = torch.zeros(1, dtype=torch.bool, device=x_KI.device)
    recovered_product_kernel[(1, 1)](
        hit_B, x_KI.contiguous(), weight_OI, weight_OI, weight_OI, out, 1, rows, I=160, O=48, BIAS=False, ADD=False,
        LAST=False, MOST_B=1, BLOCK_M=max(16, block), BLOCK_I=min(64, max(16, block)), BLOCK_O=64,
    )  # fmt: skip
    torch.testing.assert_close(out, F.linear(x_KI, weight_OI), atol=1e-4, rtol=1e-4)
    return out


@interpreted
def test_tiles_that_go_by_the_number_of_rows_are_found() -> None:
    """What a deeper tile adds up in one go is added up part by part in others."""
    assert rows_that_differ(tiled_by_rows, 160, torch.device("cpu"))


def test_tiles_of_a_program_change_no_bit(device: torch.device) -> None:
    made = layer("dense", 160, 48, True, device)
    assert isinstance(made, FixedTileProjection)
    x_KI = random(40, 160, seed=4, device=device)
    one, two, four = (multiply(x_KI, made.weight_OI, None, None, made.bias_O, 48, tiles) for tiles in (1, 2, 4))
    assert same_bits(one, two) and same_bits(one, four)


def test_a_view_that_begins_anywhere(device: torch.device) -> None:
    """Rows out of a wider tensor, from a multiple of 16 bytes on and from an odd place."""
    made = layer("dense", 33, 17, False, device)
    wide = random(6, 72, seed=5, device=device)
    for first in (4, 3):
        view = wide[1:, first : first + 33]
        assert same_bits(made(view), made(view.clone()))


def test_weights_that_begin_anywhere_are_copied_once(device: torch.device) -> None:
    """When the layer is made; those that begin at a multiple of 16 bytes stay where they are."""
    memory = random(1, 8 + 48 * 33, seed=7, device=device)[0]
    x_KI = random(3, 33, seed=8, device=device)
    for first in (4, 3):
        weight_OI = memory[first : first + 48 * 33].view(48, 33)
        made = FixedTileProjection(weight_OI)
        assert made.holds(weight_OI) == (first == 4)
        place = made.weight_OI.data_ptr()
        assert place % 16 == 0
        torch.testing.assert_close(made(x_KI), F.linear(x_KI, weight_OI), atol=1e-4, rtol=1e-4)
        assert made.weight_OI.data_ptr() == place


def test_derivatives_go_through_torch(device: torch.device) -> None:
    x_KI = random(2, 64, seed=6, device=device).requires_grad_()
    for weights in WEIGHTS:
        layer(weights, 64, 8, True, device)(x_KI).sum().backward()
    assert x_KI.grad is not None
