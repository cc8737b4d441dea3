"""Compiles the kernels of :mod:`spec_sdk_backends.recovery_kernels` without a GPU (:mod:`machine_code`).

Arguments: cases, each with commas between fp16, bf16 or fp32; rows; model dim; MLP dim; compute capability.
"""

from __future__ import annotations

import sys
from typing import Any

import triton  # type: ignore[import-untyped]

from spec_sdk_backends.fused_decoder import BLOCK_I, norm_warps
from spec_sdk_backends.recovery import MOST_ROWS, PRODUCT_BLOCKS
from spec_sdk_backends.recovery_kernels import (
    recovered_activation_kernel,
    recovered_norm_kernel,
    recovered_product_kernel,
)
from tests.kernels.machine_code import compile_and_print

FLOATS = ("x_ptr", "weight_ptr", "bias_ptr", "added_ptr", "out_ptr", "h_ptr", "gain_ptr", "gate_up_ptr")


def main(case: str) -> None:
    dtype, *numbers = case.split(",")
    rows, width, mlp, capability = map(int, numbers)
    types = dict.fromkeys(FLOATS, f"*{dtype}") | {"epsilon": "fp32", "hit_ptr": "*u8"}
    block_o, block_i, stages, warps = PRODUCT_BLOCKS[4 if dtype == "fp32" else 2]
    block_m = min(MOST_ROWS, max(16, triton.next_power_of_2(rows)))
    blocks: dict[str, Any] = {"MOST_B": 1, "BLOCK_M": block_m, "BLOCK_I": block_i, "BLOCK_O": block_o}
    for inputs, outputs, last in ((width, 2 * mlp, False), (mlp, width, True)):
        sizes = {"I": inputs, "O": outputs, "BIAS": False, "ADD": last, "LAST": last}
        compile_and_print(recovered_product_kernel, sizes | blocks, types, warps, stages, capability, case)
    block = triton.next_power_of_2(width)
    norm = {"M": width, "MOST_B": 1, "BLOCK_M": block}
    compile_and_print(recovered_norm_kernel, norm, types, norm_warps(block), 1, capability, case)
    gate = {"WIDTH": mlp, "GELU": False, "MOST_B": 1, "BLOCK_I": BLOCK_I}
    compile_and_print(recovered_activation_kernel, gate, types, 4, 1, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
