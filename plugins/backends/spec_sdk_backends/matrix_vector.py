"""Launches products with one row (:mod:`spec_sdk_backends.matrix_vector_kernel`), and says which can be made so.

Legend: B requests, N rows of a request, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.model.decoder import BlockWeights
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.dependent_launches import overlapped
from spec_sdk_backends.matrix_vector_kernel import matrix_vector_kernel
from spec_sdk_backends.tree_attention import DTYPES


@dataclass(frozen=True)
class MatrixVectorTile:
    """Outputs and inputs of a block, and warps of a program."""

    outputs: int
    inputs: int
    warps: int

    @staticmethod
    def choose(inputs: int, normed: bool, gated: bool) -> MatrixVectorTile:
        """What was fastest on an H200, or nearly, for the products of three models (benchmarks/gpu/matrix_vector.py).

        A norm is read by every program: fewer, larger ones read it less often.
        """
        whole = triton.next_power_of_2(inputs)
        if gated:
            if whole > 4096:
                # the weights of a second step take registers besides: compiled, not timed
                return MatrixVectorTile(2, 2048, 4)
            return MatrixVectorTile(2, whole, max(2, whole // 1024))
        if inputs <= 1024:
            return MatrixVectorTile(4, whole, 2)
        if normed:
            return MatrixVectorTile(8, 512, 2)
        return MatrixVectorTile(2, whole, 4) if inputs <= 2048 else MatrixVectorTile(4, 1024, 2)


def is_dense(projection: Projection) -> bool:
    """Whether the kernel multiplies with this projection's matrix."""
    return type(projection) is Projection and projection.weight_OI.dtype in DTYPES


def takes_one_row(block: BlockWeights) -> bool:
    """Whether all of a block's linear layers are products that the kernel makes."""
    return isinstance(block.mlp, GatedMLP) and all(
        is_dense(projection) for projection in (block.qkv, block.output, *block.mlp.projections)
    )


def matrix_vector(
    x_11I: torch.Tensor,
    projection: Projection,
    *,
    gain_I: torch.Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | None = None,
    added_11O: torch.Tensor | None = None,
    tile: MatrixVectorTile | None = None,
) -> torch.Tensor:
    """The projection of one row [1, 1, O], with the norm of ``gain_I`` before it; with ``activation`` (silu, gelu_tanh)
    the first half of its outputs gates the second, and O is half of them; ``added_11O`` is added last.
    """
    weight_OI = projection.weight_OI
    gated, (outputs, inputs) = activation is not None, weight_OI.shape
    outputs = outputs // 2 if gated else outputs
    tile = tile or MatrixVectorTile.choose(inputs, gain_I is not None, gated)
    out_11O = x_11I.new_empty((1, 1, outputs))
    # tensors that are not read stand for those that there are none of
    gain = x_11I if gain_I is None else gain_I
    bias = x_11I if projection.bias_O is None else projection.bias_O
    added = x_11I if added_11O is None else added_11O
    matrix_vector_kernel[(triton.cdiv(outputs, tile.outputs),)](
        x_11I,
        weight_OI,
        gain,
        bias,
        added,
        out_11O,
        epsilon,
        INPUTS=inputs,
        OUTPUTS=outputs,
        NORMED=gain_I is not None,
        BIASED=projection.bias_O is not None,
        GATED=gated,
        GELU=activation == "gelu_tanh",
        ADDED=added_11O is not None,
        BLOCK_O=tile.outputs,
        BLOCK_I=tile.inputs,
        num_warps=tile.warps,
        **overlapped(x_11I.device),
    )
    return out_11O
