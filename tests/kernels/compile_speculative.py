"""Compiles the kernels of speculative attention without a GPU (:mod:`machine_code`).

Arguments: cases, each with commas between fp16, bf16 or fp32; head dim; rows per KV head; closed or growing; compute
capability.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from spec_sdk_backends.speculative_attention import FEW_SLOTS
from spec_sdk_backends.speculative_attention_kernel import combine_speculation_kernel, speculative_split_kernel
from spec_sdk_backends.tree_attention import MAX_SPLITS, Tiling
from tests.kernels.machine_code import compile_and_print

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
FLOATS = (
    *("window_part_ptr", "window_lse_ptr", "window_l_ptr", "middle_part_ptr", "middle_lse_ptr", "m_ptr", "l_ptr"),
    *("sums_ptr", "difference_ptr", "norm_ptr"),
)


def main(case: str) -> None:
    dtype, *numbers, ends, capable = case.split(",")
    head_dim, rows = map(int, numbers)
    closed, capability = ends == "closed", int(capable)
    tiling = Tiling.choose(rows, head_dim, DTYPES[dtype])
    block = {"BLOCK_M": tiling.rows, "BLOCK_K": tiling.keys, "BLOCK_D": tiling.head_dim}
    shape = {"G": 2, "R": 3, "D": head_dim, "CLOSED": closed, "PREFIX_PER_SEQUENCE": not closed, "CACHED": not closed}
    constants: dict[str, Any] = {**shape, **block, "stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = {"q_ptr": f"*{dtype}", "k_ptr": f"*{dtype}", "v_ptr": f"*{dtype}", "scale_log2": "fp32"}
    types |= {"part_ptr": "*fp32", "lse_ptr": "*fp32"}
    for window, middle in ((True, True), (True, False), (False, True)):
        flags = {"WINDOW": window, "MIDDLE": middle, "ZERO_COUNTERS": middle}
        compile_and_print(
            speculative_split_kernel, constants | flags, types, tiling.warps, tiling.stages, capability, case
        )
    types = dict.fromkeys(FLOATS, "*fp32") | {"predicted_ptr": f"*{dtype}", "exact_ptr": f"*{dtype}"}
    for stage in ("whole", "predict", "finish"):
        heads = {"H": 6, "HEAD_BLOCKS": 6, "BLOCK_H": 1, "ALL_H": 8}
        parts = {"BLOCK_W": FEW_SLOTS, "BLOCK_S": MAX_SPLITS, "BLOCK_D": tiling.head_dim}
        combine: dict[str, Any] = {"D": head_dim, "STAGE": stage, "MIDDLE": stage != "predict", **heads, **parts}
        warps = 8 if 64 * tiling.head_dim > 8192 else 4
        compile_and_print(combine_speculation_kernel, combine, types, warps, 2, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
