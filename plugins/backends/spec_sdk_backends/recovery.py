"""Launches the kernels of :mod:`spec_sdk_backends.recovery_kernels`: a block's rest on exact attention, after a miss.

Legend: B requests, N rows of a request, M model dim, I inputs, O outputs, H query heads, D head dim.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.model.decoder import Decoder
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.fused_decoder import BLOCK_I, norm_warps, unknown_rest
from spec_sdk_backends.recovery_kernels import (
    recovered_activation_kernel,
    recovered_norm_kernel,
    recovered_product_kernel,
)

MOST_ROWS = 32
"""Of a block of a product: more take several, each of which reads the weights."""
PRODUCT_BLOCKS: dict[int, tuple[int, int, int, int]] = {2: (16, 256, 4, 4), 4: (16, 64, 4, 4)}
"""By bytes of an element: outputs and inputs of a block, stages, warps. Few outputs, so that a product of few rows has
programs for all multiprocessors."""


def unrecoverable_because(decoder: Decoder) -> str | None:
    """Why the kernels cannot redo what follows attention in a decoder's blocks; None if they can."""
    if unknown := unknown_rest(decoder):
        return unknown
    for layer, block in enumerate(decoder.blocks):
        assert isinstance(block.mlp, GatedMLP)
        if any(type(part) is not Projection for part in (block.output, *block.mlp.projections)):
            return f"layer {layer} has weights that are no plain matrices"
    return None


def recover(
    decoder: Decoder,
    layer: int,
    h_BNM: torch.Tensor,
    exact_BNHD: torch.Tensor,
    hit_B: torch.Tensor,
    out_BNM: torch.Tensor,
) -> None:
    """Write to ``out_BNM``, for the requests that ``hit_B`` (bool, on the device) does not name, what leaves the block
    that ``h_BNM`` enters if ``exact_BNHD`` is its attention. Five launches whatever the verdicts, and nothing waits.

    ``out_BNM`` is contiguous. The decoder is one that :func:`unrecoverable_because` has nothing against.
    """
    w = decoder.blocks[layer]
    assert isinstance(w.mlp, GatedMLP)
    hit_B = hit_B.view(torch.uint8)
    h_BNM = h_BNM.contiguous()
    attended_BNM = _product(w.output, exact_BNHD.flatten(2).to(h_BNM.dtype), hit_B, h_BNM)
    normed_BNM = torch.empty_like(attended_BNM)
    B, N, M = h_BNM.shape
    most = triton.next_power_of_2(B)
    block = triton.next_power_of_2(M)
    recovered_norm_kernel[(B * N,)](
        hit_B,
        attended_BNM,
        w.post_norm_M,
        normed_BNM,
        decoder.config.rms_norm_eps,
        B,
        M=M,
        MOST_B=most,
        BLOCK_M=block,
        num_warps=norm_warps(block),
    )
    gate_up = _product(w.mlp.gate_up, normed_BNM, hit_B)
    width = gate_up.shape[-1] // 2
    active = gate_up.new_empty((B, N, width))
    recovered_activation_kernel[(B * N, triton.cdiv(width, BLOCK_I))](
        hit_B,
        gate_up,
        active,
        B,
        WIDTH=width,
        GELU=w.mlp.activation != "silu",
        MOST_B=most,
        BLOCK_I=BLOCK_I,
        num_warps=4,
    )
    _product(w.mlp.down, active, hit_B, attended_BNM, out_BNM)


def _product(
    projection: Projection,
    x_BNI: torch.Tensor,
    hit_B: torch.Tensor,
    added_BNO: torch.Tensor | None = None,
    out_BNO: torch.Tensor | None = None,
) -> torch.Tensor:
    """x Wᵀ + bias + added [B, N, O]; into ``out_BNO``, if given, for the missed requests alone."""
    (B, N, inputs), outputs = x_BNI.shape, projection.outputs
    x_BNI = x_BNI.contiguous()
    out = x_BNI.new_empty((B, N, outputs)) if out_BNO is None else out_BNO
    block_o, block_i, stages, warps = PRODUCT_BLOCKS[x_BNI.element_size()]
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(B * N)))
    recovered_product_kernel[(triton.cdiv(outputs, block_o), triton.cdiv(B * N, rows))](
        hit_B,
        x_BNI,
        projection.weight_OI,
        x_BNI if projection.bias_O is None else projection.bias_O,
        x_BNI if added_BNO is None else added_BNO,
        out,
        B,
        N,
        I=inputs,
        O=outputs,
        BIAS=projection.bias_O is not None,
        ADD=added_BNO is not None,
        LAST=out_BNO is not None,
        MOST_B=triton.next_power_of_2(B),
        BLOCK_M=rows,
        BLOCK_I=block_i,
        BLOCK_O=block_o,
        num_warps=warps,
        num_stages=stages,
    )
    return out
