"""Compiles the kernels of :mod:`spec_sdk_backends.fused_block_kernels`, and products with one row, without a GPU
(:mod:`machine_code`). For compute capability 90 launches overlap.

Arguments: cases, each with commas between fp16, bf16 or fp32; head dim; heads of Q and of K; model dim; compute
capability.
"""

from __future__ import annotations

import sys
from typing import Any

import triton  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import SINCE
from spec_sdk_backends.fused_block_kernels import (
    add_rms_norm_kernel,
    gated_activation_kernel,
    rotate_and_store_kernel,
)
from spec_sdk_backends.fused_decoder import BLOCK_I, HEADS_AT_ONCE, ROTATION_WARPS, norm_warps
from spec_sdk_backends.matrix_vector import MatrixVectorTile
from spec_sdk_backends.matrix_vector_kernel import matrix_vector_kernel
from tests.kernels.machine_code import compile_and_print

FLOATS = (
    *("h_ptr", "added_ptr", "gain_ptr", "sum_ptr", "out_ptr", "qkv_ptr", "q_gain_ptr", "k_gain_ptr"),
    *("cos_ptr", "sin_ptr", "q_out_ptr", "k_out_ptr", "v_out_ptr", "gate_up_ptr"),
    *("x_ptr", "weight_ptr", "bias_ptr"),
)


def main(case: str) -> None:
    dtype, *numbers = case.split(",")
    head_dim, heads, kv_heads, width, capability = map(int, numbers)
    types = dict.fromkeys(FLOATS, f"*{dtype}") | {"epsilon": "fp32"}
    overlapped = {"OVERLAPPED": capability // 10 >= SINCE}
    block = triton.next_power_of_2(width)
    norm: dict[str, Any] = {"M": width, "ADD": True, "BLOCK_M": block, **overlapped}
    compile_and_print(add_rms_norm_kernel, norm, types, norm_warps(block), 1, capability, case)
    rotation: dict[str, Any] = {"H": heads, "G": kv_heads, "D": head_dim, "NORMED": True, "CACHED": True}
    rotation |= {"BLOCK_X": HEADS_AT_ONCE, "HALF_D": triton.next_power_of_2(head_dim // 2)} | overlapped
    compile_and_print(rotate_and_store_kernel, rotation, types, ROTATION_WARPS, 1, capability, case)
    gate: dict[str, Any] = {"WIDTH": 4 * width, "GELU": False, "BLOCK_I": BLOCK_I, **overlapped}
    compile_and_print(gated_activation_kernel, gate, types, 4, 1, capability, case)
    for inputs, gated in ((width, True), (4 * width, False)):
        tile = MatrixVectorTile.choose(inputs, gated, gated)
        product: dict[str, Any] = {"INPUTS": inputs, "OUTPUTS": 4 * width if gated else width, "NORMED": gated}
        product |= {"BIASED": False, "GATED": gated, "GELU": False, "ADDED": not gated, **overlapped}
        product |= {"BLOCK_O": tile.outputs, "BLOCK_I": tile.inputs}
        compile_and_print(matrix_vector_kernel, product, types, tile.warps, 1, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
