"""Compiles the kernels of speculative attention for one NVIDIA architecture; no GPU is needed.

Prints name, bytes of machine code and bytes of shared memory of each, and, where triton's cuobjdump is there to ask,
registers a thread and bytes of stack (spills).

Arguments: fp16, bf16 or fp32; head dim; rows per KV head; closed or growing; compute capability (80 if left out).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from spec_sdk_backends.speculative_attention_kernel import combine_speculation_kernel, speculative_split_kernel
from spec_sdk_backends.tree_attention import Tiling

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
POINTERS = {"key_start_ptr", "key_end_ptr", "query_start_ptr", "prefix_ptr", "counter_ptr"}


def compile_one(
    kernel: Any, constants: dict[str, Any], types: dict[str, str], warps: int, stages: int, capability: int
) -> None:
    """``types``: of the arguments that are neither 32-bit integers nor, if their name ends so, pointers to float32."""

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        default = "i32" if not name.endswith("_ptr") else "*i32" if name in POINTERS else "*fp32"
        return types.get(name, default)

    signature = {name: type_of(name) for name in kernel.arg_names}
    # what a launch finds out itself: tensors are aligned, and so are all strides but those over 1
    divisible = [name for name in signature if name.endswith("_ptr") or name.startswith("stride_")]
    attributes = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible if name not in constants
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    done = triton_compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(kernel.__name__, len(done.asm["cubin"]), done.metadata.shared, resources(done.asm["cubin"]))


def resources(cubin: bytes) -> str:
    """Registers a thread and bytes of stack (spills and arrays), if triton's cuobjdump is there to ask."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    return f"{found[1]} {found[2]}" if found else ""


def main(dtype: str, head_dim: int, rows: int, closed: bool, capability: int) -> None:
    tiling = Tiling.choose(rows, head_dim, DTYPES[dtype])
    compiling = {"warps": tiling.warps, "stages": tiling.stages, "capability": capability}
    block = {"BLOCK_M": tiling.rows, "BLOCK_K": tiling.keys, "BLOCK_D": tiling.head_dim}
    shape = {"G": 2, "R": 3, "D": head_dim, "CLOSED": closed, "PREFIX_PER_SEQUENCE": not closed}
    constants = {**shape, **block, "stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = {"q_ptr": f"*{dtype}", "k_ptr": f"*{dtype}", "v_ptr": f"*{dtype}", "scale_log2": "fp32"}
    combining = {"warps": 4, "stages": 2, "capability": capability}
    for window, middle in ((True, True), (True, False), (False, True)):
        flags = {"WINDOW": window, "MIDDLE": middle, "ZERO_COUNTERS": middle}
        compile_one(speculative_split_kernel, {**constants, **flags}, types, **compiling)
    outputs = {"predicted_ptr": f"*{dtype}", "exact_ptr": f"*{dtype}"}
    for stage in ("whole", "predict", "finish"):
        heads = {"H": 6, "HEAD_BLOCKS": 6, "BLOCK_H": 1, "ALL_H": 8}
        parts = {"BLOCK_W": 4, "BLOCK_S": 64, "BLOCK_D": tiling.head_dim}
        combine: dict[str, Any] = {"D": head_dim, "STAGE": stage, "MIDDLE": stage != "predict", **heads, **parts}
        combining["warps"] = 8 if 64 * tiling.head_dim > 8192 else 4
        compile_one(combine_speculation_kernel, combine, outputs, **combining)


if __name__ == "__main__":
    dtype, head_dim, rows, tree, *capability = sys.argv[1:]
    main(dtype, int(head_dim), int(rows), tree == "closed", int((capability or ["80"])[0]))
