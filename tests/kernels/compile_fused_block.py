"""Compiles the kernels of :mod:`spec_sdk_backends.fused_block_kernels`, those of greedy choices and of top tokens, and
products with one row and with few, without a GPU (:mod:`machine_code`). For compute capability 90 launches overlap, and
small operations sum the parts of products.

Arguments: cases, each with commas between fp16, bf16 or fp32; head dim; heads of Q and of K; model dim; compute
capability.
"""

from __future__ import annotations

import sys
from typing import Any

import triton  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import SINCE
from spec_sdk_backends.few_rows_kernel import (
    few_rows_kernel,
    gated_few_rows_kernel,
    rotated_few_rows_kernel,
    summed_few_rows_kernel,
)
from spec_sdk_backends.few_rows_tiles import FewRowsTile
from spec_sdk_backends.fused_block_kernels import (
    add_rms_norm_kernel,
    gated_activation_kernel,
    rotate_and_store_kernel,
)
from spec_sdk_backends.fused_decoder import BLOCK_I, HEADS_AT_ONCE, ROTATION_WARPS, norm_warps
from spec_sdk_backends.greedy_choice import PART, PART_WARPS
from spec_sdk_backends.greedy_choice_kernels import largest_of_all_kernel, largest_of_parts_kernel
from spec_sdk_backends.matrix_vector import MatrixVectorTile
from spec_sdk_backends.matrix_vector_kernel import matrix_vector_kernel
from spec_sdk_backends.top_tokens_kernels import top_of_all_kernel, top_of_parts_kernel
from tests.kernels.machine_code import compile_and_print

FLOATS = (
    *("h_ptr", "added_ptr", "gain_ptr", "sum_ptr", "out_ptr", "qkv_ptr", "q_gain_ptr", "k_gain_ptr"),
    *("cos_ptr", "sin_ptr", "q_out_ptr", "k_out_ptr", "v_out_ptr", "gate_up_ptr"),
    *("x_ptr", "weight_ptr", "bias_ptr"),
)
FEW = (
    (
        FewRowsTile(64, 128, 1, 5, 4, 512),
        64,
        (few_rows_kernel, summed_few_rows_kernel, gated_few_rows_kernel, rotated_few_rows_kernel),
    ),
    (FewRowsTile(64, 128, 1, 4, 4, 256), 32, (gated_few_rows_kernel,)),
    (FewRowsTile(16, 256, 1, 5, 1, 512), 16, (rotated_few_rows_kernel,)),
)
"""Tiles and rows of products of few rows, and the kernels that have them."""


def main(case: str) -> None:
    dtype, *numbers = case.split(",")
    head_dim, heads, kv_heads, width, capability = map(int, numbers)
    types = dict.fromkeys(FLOATS, f"*{dtype}") | {"epsilon": "fp32"}
    overlapped: dict[str, Any] = {"OVERLAPPED": capability // 10 >= SINCE}
    overlapped["PARTS"] = parts = 4 if overlapped["OVERLAPPED"] else 1
    if parts > 1:
        types |= dict.fromkeys(("qkv_ptr", "gate_up_ptr", "part_ptr"), "*fp32")
    block = triton.next_power_of_2(width)
    norm: dict[str, Any] = {"M": width, "ADD": True, "BLOCK_M": block, **overlapped}
    compile_and_print(add_rms_norm_kernel, norm, types, norm_warps(block), 1, capability, case)
    rotation: dict[str, Any] = {"H": heads, "G": kv_heads, "D": head_dim}
    rotation |= dict.fromkeys(("NORMED", "CACHED", "TABLED"), True)
    rotation |= {"BLOCK_X": HEADS_AT_ONCE, "HALF_D": triton.next_power_of_2(head_dim // 2)} | overlapped
    compile_and_print(rotate_and_store_kernel, rotation, types, ROTATION_WARPS, 1, capability, case)
    gate: dict[str, Any] = {"WIDTH": 4 * width, "GELU": False, "BLOCK_I": BLOCK_I, **overlapped}
    compile_and_print(gated_activation_kernel, gate, types, 4, 1, capability, case)
    choice: dict[str, Any] = {"BLOCK_V": PART, "BLOCK_S": 32, **overlapped}
    parts_of = {"top_ptr": "*fp32", "logits_ptr": f"*{dtype}", "choice_ptr": "*i64"}
    compile_and_print(largest_of_parts_kernel, choice, parts_of, PART_WARPS, 1, capability, case)
    compile_and_print(largest_of_all_kernel, choice, parts_of, 1, 1, capability, case)
    wanted: dict[str, Any] = {**choice, "WANTED": 4, "BLOCK_C": 128}
    parts_of |= {"sum_ptr": "*fp32", "logprob_ptr": "*fp32", "place_ptr": "*i64"}
    compile_and_print(top_of_parts_kernel, wanted, parts_of, PART_WARPS, 1, capability, case)
    compile_and_print(top_of_all_kernel, wanted, parts_of, 2, 1, capability, case)
    for inputs, gated in ((width, True), (4 * width, False)):
        tile = MatrixVectorTile.choose(inputs, gated, gated)
        product: dict[str, Any] = {"INPUTS": inputs, "OUTPUTS": 4 * width if gated else width, "NORMED": gated}
        product |= {"BIASED": False, "GATED": gated, "GELU": False, "ADDED": not gated, **overlapped}
        product |= {"BLOCK_O": tile.outputs, "BLOCK_I": tile.inputs}
        of_row = types | {"added_ptr": f"*{dtype}"}
        compile_and_print(matrix_vector_kernel, product, of_row, tile.warps, 1, capability, case)
    if overlapped["OVERLAPPED"] and dtype != "fp32":
        shared: dict[str, Any] = {"INPUTS": 4 * width, "BIASED": False, "SQUARES": 64, "BLOCK_Q": 64, **overlapped}
        shared |= {"OUTPUTS": width, "SCALED": True, "WIDTH": width, "GELU": False, "PARTS": 2}
        shared |= {"BITS": 0, "OFFSETS": False}
        shared |= {"H": heads, "G": kv_heads, "D": head_dim}
        types |= {"square_ptr": "*fp32", "part_ptr": "*fp32", "scaled_ptr": f"*{dtype}"}
        for few, rows, kernels in FEW:
            of_tile = {"BLOCK_K": rows, "BLOCK_O": few.outputs, "BLOCK_I": few.inputs, "AHEAD": few.ahead}
            for kernel in kernels:
                constants = {**shared, **of_tile, "STAGES": few.stages}
                compile_and_print(kernel, constants, types, few.warps, few.stages, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
