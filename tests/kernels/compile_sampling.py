"""Compiles the sampling kernels without a GPU; prints the case, name, bytes of code, bytes of shared memory.

Arguments: cases, each with commas between the dtype of the logits (fp16, bf16 or fp32); plain or filtered; softmax or
sigmoid; compute capability; chain or tree (several draws at a node, and laws that are given as probabilities).
"""

from __future__ import annotations

import sys
from typing import Any

from triton import compile as triton_compile  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from spec_sdk_backends.rejection_kernels import decide_kernel, next_token_kernel, row_statistics_kernel

FLOATS = ("least_ptr", "max_ptr", "sum_ptr", "mass_ptr", "plain_ptr", "given_ptr", "known_ptr")
LONGS = ("row_offset_ptr", "draw_ptr", "root_ptr", "stop_ptr", "verdict_ptr")


def compile_one(kernel: Any, dtype: str, constants: dict[str, Any], capability: int, warps: int, case: str) -> None:
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {"p_ptr": f"*{dtype}", "q_ptr": f"*{dtype}", "uniform_ptr": "*fp64", "last_ptr": "*i32"}
    types |= dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(LONGS, "*i64")
    types |= dict.fromkeys(("temperature", "alpha", "width"), "fp32")
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if name.endswith("_ptr") or name == "V"
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    done = triton_compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    print(case, kernel.__name__, len(done.asm["cubin"]), done.metadata.shared)


def main(case: str) -> None:
    dtype, filters, laws, capability, shape = case.split(",")
    tree = shape == "tree"
    constants = {
        "FILTERED": filters == "filtered", "SIGMOID": laws == "sigmoid", "PARTS": 64, "ALIGNED": True, "TILE": 1024,
        "TILES": 256, "GIVEN": tree, "MOST": 4 if tree else 1, "WIDE": 4096,
    }  # fmt: skip
    for kernel in (row_statistics_kernel, decide_kernel, next_token_kernel):
        warps = 16 if tree and kernel is decide_kernel else 4
        compile_one(kernel, dtype, constants, int(capability), warps, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
