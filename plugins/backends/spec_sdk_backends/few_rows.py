"""Launches products with few rows (:mod:`spec_sdk_backends.few_rows_kernel`), and says which are made so.

8B on an H200, a pass over a tree of 64 nodes: 5.24 ms of the device with the library's products, 4.93 with these; a
shape of 1B 1.22 and 1.11. With 8 or 16 rows they took 2 to 4 % longer.

Legend: B requests, N rows of a request, K = B*N rows, I inputs, O outputs, S parts of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.model.decoder import BlockWeights
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.dependent_launches import overlapped
from spec_sdk_backends.few_rows_kernel import few_rows_kernel
from spec_sdk_backends.matrix_vector import takes_one_row

ROWS = range(33, 65)
"""Of fewer the library's products are as fast, or faster, and of more its blocks are larger (H200, two models)."""
LEAST_INPUTS = 2048
"""Of the matrices for which that was measured; products of smaller ones take little of a pass."""
LEAST_SHARED = 200 * 1024
"""Bytes of shared memory of a multiprocessor: five stages take 160 KiB."""


@dataclass(frozen=True)
class FewRowsTile:
    """Outputs and inputs of a block, parts of the inputs, stages of the pipeline, and warps of a program; ``ahead``
    inputs of each output are asked for before a program waits for the launch before.
    """

    outputs: int
    inputs: int
    parts: int
    stages: int
    warps: int
    ahead: int

    @staticmethod
    def choose(inputs: int, outputs: int, device: torch.device) -> FewRowsTile:
        """What was fastest on an H200, or nearly, for the products of two models (benchmarks/gpu/few_rows.py): one
        program for each multiprocessor, with a deep pipeline, or several where there are more blocks of outputs.
        """
        blocks, steps = triton.cdiv(outputs, 64), triton.cdiv(inputs, 128)
        at_once = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else blocks
        parts = max((parts for parts in (1, 2, 4, 8) if parts * blocks <= at_once and 4 * parts <= steps), default=1)
        alone = parts * blocks <= at_once
        return FewRowsTile(64, 128, parts, 5 if alone else 3, 4, 512 if alone else 256)


def takes_few_rows(block: BlockWeights, device: torch.device) -> bool:
    """Whether all of a block's linear layers are products that the kernel makes, and gain by it: large ones of 16 bits,
    where launches overlap. Off the GPU, where kernels are interpreted, all are made.
    """
    if not takes_one_row(block):
        return False
    if device.type != "cuda":
        return True
    assert isinstance(block.mlp, GatedMLP)
    projections = (block.qkv, block.output, *block.mlp.projections)
    large = all(one.inputs >= LEAST_INPUTS and one.weight_OI.dtype.itemsize == 2 for one in projections)
    shared = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return large and shared >= LEAST_SHARED and bool(overlapped(device)["OVERLAPPED"])


def product_of_few_rows(x_BNI: torch.Tensor, projection: Projection, tile: FewRowsTile | None = None) -> torch.Tensor:
    """Parts [S, B, N, O] whose sum is the projection of K rows, which a block holds all of: in float32, a single one in
    x's dtype.
    """
    weight_OI = projection.weight_OI
    (outputs, inputs), (B, N) = weight_OI.shape, x_BNI.shape[:2]
    tile = tile or FewRowsTile.choose(inputs, outputs, x_BNI.device)
    dtype = x_BNI.dtype if tile.parts == 1 else torch.float32
    part_SBNO = torch.empty((tile.parts, B, N, outputs), dtype=dtype, device=x_BNI.device)
    few_rows_kernel[(triton.cdiv(outputs, tile.outputs), tile.parts)](
        x_BNI.contiguous(),
        weight_OI,
        weight_OI if projection.bias_O is None else projection.bias_O,
        part_SBNO,
        B * N,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=tile.parts,
        BIASED=projection.bias_O is not None,
        # tensor cores take 16
        BLOCK_K=max(16, triton.next_power_of_2(B * N)),
        BLOCK_O=tile.outputs,
        BLOCK_I=tile.inputs,
        AHEAD=tile.ahead,
        STAGES=tile.stages,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **overlapped(x_BNI.device),
    )
    return part_SBNO
