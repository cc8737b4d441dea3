"""Compiles tree attention, without and with a list of visible blocks, the kernel that makes the list, and the one that
combines splits, without a GPU (:mod:`machine_code`).

Arguments: cases, each with commas between fp16, bf16 or fp32; head dim; rows per KV head; closed or growing; compute
capability, 80 or 90. Values of heads of more than 256 dims are their keys. For 90, sequences lie in the slots of a
cache, with a window and capped scores; for 80, they all have one prefix.
"""

from __future__ import annotations

import sys

import torch

from spec_sdk_backends.dependent_launches import SINCE
from spec_sdk_backends.tree_attention import LOOKED_AT_ONCE, MAX_HEAD_DIM, MAX_SPLITS, SPLITS_OF_A_KERNEL, Tiling
from spec_sdk_backends.tree_attention_kernel import (
    combine_splits_kernel,
    tree_attention_kernel,
    visible_blocks_kernel,
)
from tests.kernels.machine_code import compile_and_print

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def main(case: str) -> None:
    dtype, size, count, ends, capable = case.split(",")
    head_dim, rows, closed, capability = int(size), int(count), ends == "closed", int(capable)
    tiling = Tiling.choose(rows, head_dim, DTYPES[dtype])
    constants = {"G": 2, "R": 3, "D": head_dim, "CLOSED": closed, "CACHED": capability == 90}
    constants |= {"OVERLAPPED": capability // 10 >= SINCE}
    constants |= {"ONE": head_dim > MAX_HEAD_DIM}
    constants |= {"WINDOWED": capability == 90, "CAPPED": capability == 90, "SINKS": capability == 90}
    constants |= {"BLOCK_M": tiling.rows, "BLOCK_K": tiling.keys, "BLOCK_D": tiling.head_dim}
    constants |= {"stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    parts = {"part_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": f"*{dtype}"}
    types = {name: f"*{dtype}" for name in ("q_ptr", "k_ptr", "v_ptr")}
    types |= {"scale_log2": "fp32", "cap_log2": "fp32", "list_ptr": "*i16", "sink_ptr": "*fp32"} | parts
    for listed in (False, True):
        listing = constants | {"LISTED": listed}
        compile_and_print(tree_attention_kernel, listing, types, tiling.warps, tiling.stages, capability, case)
    looking = {**constants, "AT_ONCE": LOOKED_AT_ONCE // tiling.keys}
    compile_and_print(visible_blocks_kernel, looking, types, 4, 2, capability, case)
    splits = MAX_SPLITS if head_dim <= MAX_HEAD_DIM else SPLITS_OF_A_KERNEL[1]
    constants = {"D": head_dim, "BLOCK_D": tiling.head_dim, "BLOCK_M": 1, "BLOCK_S": splits}
    constants |= {"OVERLAPPED": capability // 10 >= SINCE}
    compile_and_print(combine_splits_kernel, constants, parts, 4, 2, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
