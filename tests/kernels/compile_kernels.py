"""Compiles both kernels without a GPU; prints name, bytes of code, bytes of shared memory, asynchronous copies.

Arguments: fp16, bf16 or fp32; head dim; rows per KV head; closed or growing; compute capability, 80 or 90.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from triton import compile as triton_compile  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from spec_sdk_backends.tree_attention import Tiling
from spec_sdk_backends.tree_attention_kernel import combine_splits_kernel, tree_attention_kernel

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def compile_one(
    kernel: Any, constants: dict[str, Any], types: dict[str, str], warps: int, stages: int, capability: int
) -> None:
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*i32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    # as a launch finds them: tensors and rows begin at multiples of 16 bytes
    aligned = [["tt.divisibility", 16]]
    attrs = {
        (i,): aligned
        for i, name in enumerate(kernel.arg_names)
        if name not in constants and name.startswith("stride_") | name.endswith("_ptr")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    target = GPUTarget("cuda", capability, 32)
    done = triton_compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    copies = done.asm["ttgir"].count("async_copy_global_to_local")
    print(kernel.__name__, len(done.asm["cubin"]), done.metadata.shared, copies)


def main(dtype: str, head_dim: int, rows: int, closed: bool, capability: int) -> None:
    tiling = Tiling.choose(rows, head_dim, DTYPES[dtype])
    shape = {"D": head_dim, "SPLITS": 2, "BLOCK_D": tiling.head_dim}
    constants = {"G": 2, "R": 3, "CLOSED": closed, "PREFIX_PER_SEQUENCE": not closed, **shape}
    constants |= {"BLOCK_M": tiling.rows, "BLOCK_K": tiling.keys, "stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = {"q_ptr": f"*{dtype}", "k_ptr": f"*{dtype}", "v_ptr": f"*{dtype}", "scale_log2": "fp32"}
    parts = {"out_ptr": "*fp32", "lse_ptr": "*fp32"}
    compile_one(tree_attention_kernel, constants, types | parts, tiling.warps, tiling.stages, capability)
    parts = {"part_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": f"*{dtype}"}
    compile_one(combine_splits_kernel, {"BLOCK_M": 16, "BLOCK_S": 2, **shape}, parts, 4, 2, capability)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "closed", int(sys.argv[5]))
