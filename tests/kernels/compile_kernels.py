"""Compiles both kernels without a GPU; prints the case, name, bytes of code, bytes of shared memory, and in how many
places it waits for some of its asynchronous copies while others go on.

Arguments: cases, each with commas between fp16, bf16 or fp32; head dim; rows per KV head; closed or growing; compute
capability, 80 or 90. For 90, sequences lie in the slots of a cache, with a window and capped scores; for 80, they all
have one prefix.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from triton import compile as triton_compile  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from spec_sdk_backends.tree_attention import MAX_SPLITS, Tiling
from spec_sdk_backends.tree_attention_kernel import combine_splits_kernel, tree_attention_kernel

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def compile_one(
    kernel: Any, constants: dict[str, Any], types: dict[str, str], warps: int, stages: int, capability: int, case: str
) -> None:
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*i32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    # as a launch finds them: tensors and rows begin at multiples of 16 bytes, where the kernel is to know it
    aligned = [["tt.divisibility", 16]]
    attrs = {
        (parameter.num,): aligned
        for parameter in kernel.params
        if parameter.name not in constants
        and parameter.name.startswith("stride_") | parameter.name.endswith("_ptr")
        and not parameter.do_not_specialize | parameter.do_not_specialize_on_alignment
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    target = GPUTarget("cuda", capability, 32)
    done = triton_compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    overlaps = len(re.findall(r"async_wait .*num = [1-9]", done.asm["ttgir"]))
    print(case, kernel.__name__, len(done.asm["cubin"]), done.metadata.shared, overlaps)


def main(case: str) -> None:
    dtype, size, count, ends, capable = case.split(",")
    head_dim, rows, closed, capability = int(size), int(count), ends == "closed", int(capable)
    tiling = Tiling.choose(rows, head_dim, DTYPES[dtype])
    constants = {"G": 2, "R": 3, "D": head_dim, "CLOSED": closed, "CACHED": capability == 90}
    constants |= {"WINDOWED": capability == 90, "CAPPED": capability == 90}
    constants |= {"BLOCK_M": tiling.rows, "BLOCK_K": tiling.keys, "BLOCK_D": tiling.head_dim}
    constants |= {"stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    parts = {"part_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": f"*{dtype}"}
    types = {name: f"*{dtype}" for name in ("q_ptr", "k_ptr", "v_ptr")}
    types |= {"scale_log2": "fp32", "cap_log2": "fp32"} | parts
    compile_one(tree_attention_kernel, constants, types, tiling.warps, tiling.stages, capability, case)
    constants = {"D": head_dim, "BLOCK_D": tiling.head_dim, "BLOCK_M": 1, "BLOCK_S": MAX_SPLITS}
    compile_one(combine_splits_kernel, constants, parts, 4, 2, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
