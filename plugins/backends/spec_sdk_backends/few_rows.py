"""Launches products with few rows (:mod:`spec_sdk_backends.few_rows_kernel`), and says which are made so.

8B on an H200, a pass over 8 rows: 4.95 ms with the library's products, 4.44 with these, and over one row 4.11; a shape
of 1B 1.21, 0.99 and 0.95. Over a tree of 64 nodes 5.16 and 4.70 ms of the device; 1B 1.17 and 1.04.

Legend: B requests, N rows of a request, K = B*N rows, I inputs, O outputs, S parts of the inputs, Q blocks of outputs;
H query heads, G KV heads, D head dim, S cache slots, C capacity of a slot, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.model.decoder import BlockWeights
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk_backends.dependent_launches import overlapped
from spec_sdk_backends.few_rows_kernel import (
    few_rows_kernel,
    gated_few_rows_kernel,
    rotated_few_rows_kernel,
    summed_few_rows_kernel,
)
from spec_sdk_backends.few_rows_tiles import FewRowsTile
from spec_sdk_backends.interleaved_weights import InterleavedWeights
from spec_sdk_backends.matrix_vector import is_dense

ROWS = range(2, 65)
"""Of more the library's blocks are larger (H200, two models)."""
LEAST_INPUTS = 512
"""Of the matrices for which that was measured (SmolLM2 has 576)."""
LEAST_SHARED = 200 * 1024
"""Bytes of shared memory of a multiprocessor: five stages take 160 KiB."""


def in_bits(projection: Projection) -> InterleavedWeights | None:
    """The weights of one that the kernels multiply with in few bits."""
    weights = projection.quantized
    return weights if isinstance(weights, InterleavedWeights) else None


def takes_few_rows(block: BlockWeights, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether all of a block's linear layers are products that the kernels make, and gain by it, of rows of ``dtype``:
    in bfloat16, with weights in few bits, or with large ones where launches overlap. Off the GPU, where kernels are
    interpreted, all are made.

    Not in float16: rows before the scale of their norm may be beyond its range.
    """
    if not isinstance(block.mlp, GatedMLP):
        return False
    projections = (block.qkv, block.output, *block.mlp.projections)
    dense = [one for one in projections if in_bits(one) is None]
    if not all(map(is_dense, dense)):
        return False
    if device.type != "cuda":
        return True
    if dtype != torch.bfloat16:
        return False
    large = all(one.inputs >= LEAST_INPUTS and one.weight_OI.dtype == dtype for one in dense)
    shared = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return not dense or large and shared >= LEAST_SHARED and bool(overlapped(device)["OVERLAPPED"])


@dataclass(frozen=True)
class FewRows:
    """K rows x [B, N, I] that a block holds all of; ``square_QK``: they are still to be multiplied by the scale of
    their norm, 1 / sqrt(mean + epsilon) of the squares whose sums over Q blocks these are.
    """

    x_BNI: torch.Tensor
    square_QK: torch.Tensor | None = None
    epsilon: float = 0.0


def product_of_few_rows(rows: FewRows, projection: Projection, tile: FewRowsTile | None = None) -> torch.Tensor:
    """Parts [S, B, N, O] whose sum is the projection: in float32, a single one in x's dtype."""
    outputs, inputs, x_BNI = projection.outputs, projection.inputs, rows.x_BNI
    B, N = x_BNI.shape[:2]
    tile = tile or tile_of(rows, projection)
    dtype = x_BNI.dtype if tile.parts == 1 else torch.float32
    part_SBNO = torch.empty((tile.parts, B, N, outputs), dtype=dtype, device=x_BNI.device)
    few_rows_kernel[(triton.cdiv(outputs, tile.outputs), tile.parts)](
        *operands(rows, projection),
        part_SBNO,
        B * N,
        rows.epsilon,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=tile.parts,
        **of_norm(rows),
        **options(rows, projection, tile),
    )
    return part_SBNO


def gated_product_of_few_rows(
    rows: FewRows, projection: Projection, activation: str, tile: FewRowsTile | None = None
) -> torch.Tensor | None:
    """[B, N, O]: activation(gate) * up of the projection, whose first O outputs are the gate; None where its inputs are
    divided. ``activation``: silu or gelu_tanh.
    """
    outputs, inputs, (B, N) = projection.outputs, projection.inputs, rows.x_BNI.shape[:2]
    tile = tile or tile_of(rows, projection)
    if tile.parts > 1:
        return None
    out_BNO = rows.x_BNI.new_empty((B, N, outputs // 2))
    gated_few_rows_kernel[(triton.cdiv(outputs, tile.outputs),)](
        *operands(rows, projection),
        out_BNO,
        B * N,
        rows.epsilon,
        INPUTS=inputs,
        WIDTH=outputs // 2,
        GELU=activation != "silu",
        **of_norm(rows),
        **options(rows, projection, tile),
    )
    return out_BNO


def rotated_product_of_few_rows(
    rows: FewRows,
    projection: Projection,
    rotation: tuple[torch.Tensor, torch.Tensor],
    position_BN: torch.Tensor,
    stored: tuple[torch.Tensor, torch.Tensor, PassInputs],
    tile: FewRowsTile | None = None,
) -> torch.Tensor | None:
    """Q [B, N, H, D] of the projection to H + 2G heads, rotated; None where its inputs are divided. K and V of live
    rows go into the cache. ``rotation``: cosines and sines [P, D] of all positions; ``stored``: K and V [S, G, C, D] of
    the cache, with the inputs that say at which slots and columns.
    """
    outputs, inputs, (B, N) = projection.outputs, projection.inputs, rows.x_BNI.shape[:2]
    k_SGCD, v_SGCD, of_pass = stored
    G, D = k_SGCD.shape[1], k_SGCD.shape[3]
    H = outputs // D - 2 * G
    tile = tile or tile_of(rows, projection, whole=True)
    if tile.parts > 1:
        return None
    q_BNHD = rows.x_BNI.new_empty((B, N, H, D))
    rotated_few_rows_kernel[(triton.cdiv(outputs, tile.outputs),)](
        *operands(rows, projection),
        *rotation,
        position_BN.contiguous(),
        of_pass.slot_B,
        of_pass.write_at_B,
        of_pass.live_B,
        q_BNHD,
        k_SGCD,
        v_SGCD,
        *k_SGCD.stride()[:3],
        *v_SGCD.stride()[:3],
        N,
        B * N,
        rows.epsilon,
        INPUTS=inputs,
        H=H,
        G=G,
        D=D,
        **of_norm(rows),
        **options(rows, projection, tile),
    )
    return q_BNHD


def summed_product_of_few_rows(
    x_BNI: torch.Tensor,
    projection: Projection,
    h_BNO: torch.Tensor,
    arrived: torch.Tensor,
    gain_O: torch.Tensor | None,
    epsilon: float,
    tile: FewRowsTile | None = None,
) -> tuple[torch.Tensor, FewRows | None]:
    """h + the projection of x [B, N, O], and what a product with its norm by ``gain_O`` reads, if there is one.

    ``arrived``: int32 zeros, as many as there are blocks of outputs or more, that no other stream uses; they are left
    zero.
    """
    outputs, inputs, (B, N), rows = projection.outputs, projection.inputs, x_BNI.shape[:2], FewRows(x_BNI)
    tile = tile or tile_of(rows, projection)
    blocks = triton.cdiv(outputs, tile.outputs)
    part_SKO = torch.empty((tile.parts, B * N, outputs), dtype=torch.float32, device=x_BNI.device)
    square_QK = torch.empty((blocks, B * N), dtype=torch.float32, device=x_BNI.device)
    out_BNO = h_BNO.new_empty(h_BNO.shape)
    # tensors that are not read stand for those that there are none of
    scaled_BNO = out_BNO if gain_O is None else torch.empty_like(out_BNO)
    x_BNI, matrix, bias, _ = operands(rows, projection)
    summed_few_rows_kernel[(blocks, tile.parts)](
        x_BNI,
        matrix,
        bias,
        h_BNO.contiguous(),
        matrix if gain_O is None else gain_O,
        part_SKO,
        arrived,
        out_BNO,
        scaled_BNO,
        square_QK,
        B * N,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=tile.parts,
        SCALED=gain_O is not None,
        **options(rows, projection, tile),
    )
    return out_BNO, None if gain_O is None else FewRows(scaled_BNO, square_QK, epsilon)


def operands(rows: FewRows, projection: Projection) -> tuple[torch.Tensor, ...]:
    """Rows, matrix, bias and squares; the matrix stands for what there is none of."""
    weights = in_bits(projection)
    matrix = projection.weight_OI if weights is None else weights.word
    bias = matrix if projection.bias_O is None else projection.bias_O
    return rows.x_BNI.contiguous(), matrix, bias, matrix if rows.square_QK is None else rows.square_QK


def of_norm(rows: FewRows) -> dict[str, int]:
    """What a kernel that reads rows before the scale of their norm is launched with."""
    squares = 0 if rows.square_QK is None else len(rows.square_QK)
    return {"SQUARES": squares, "BLOCK_Q": triton.next_power_of_2(max(1, squares))}


def tile_of(rows: FewRows, projection: Projection, whole: bool = False) -> FewRowsTile:
    """The tile that suits the product."""
    outputs, inputs, weights, (B, N) = projection.outputs, projection.inputs, in_bits(projection), rows.x_BNI.shape[:2]
    if weights is None:
        return FewRowsTile.choose(inputs, outputs, B * N, rows.x_BNI.device, whole)
    device, form = rows.x_BNI.device, weights.form
    return FewRowsTile.choose(inputs, outputs, B * N, device, whole, form, weights.offsets)


def options(rows: FewRows, projection: Projection, tile: FewRowsTile) -> dict[str, Any]:
    """What every such kernel is launched with."""
    weights = in_bits(projection)
    return {
        **({"BITS": 0, "OFFSETS": False} if weights is None else weights.constants()),
        "BIASED": projection.bias_O is not None,
        "BLOCK_K": tile.rows_of_block(rows.x_BNI.shape[0] * rows.x_BNI.shape[1]),
        "BLOCK_O": tile.outputs,
        "BLOCK_I": tile.inputs,
        "AHEAD": tile.ahead,
        "STAGES": tile.stages,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        **overlapped(rows.x_BNI.device),
    }
