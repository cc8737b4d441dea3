"""Compiles the kernels of ``deterministic=true`` without a GPU (:mod:`machine_code`).

Arguments: cases, each with commas between fp16, bf16 or fp32; head dim; query heads of a KV head; bits of the weights
(0: dense); compute capability. Of a case come the products of one, two and four tiles, then attention of trees and of
chains, the numbers of keys, and the joining of spans.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk_backends.aligned_attention import JOINED_AT_ONCE, LOOKED_AT_ONCE, TILE_ROWS, Spans
from spec_sdk_backends.aligned_attention_kernel import (
    aligned_attention_kernel,
    join_spans_kernel,
    key_numbers_kernel,
)
from spec_sdk_backends.fixed_tile_kernel import fixed_tile_product_kernel
from spec_sdk_backends.fixed_tile_products import Blocks
from tests.kernels.machine_code import compile_and_print

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

UNFUSED = {"enable_fp_fusion": False}


def main(case: str) -> None:
    name, *numbers = case.split(",")
    head_dim, heads, bits, capability = map(int, numbers)
    dtype = DTYPES[name]
    blocks, spans = Blocks.choose(dtype, bits, True), Spans.choose(head_dim, dtype)
    types = dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "out_ptr", "q_ptr", "k_ptr", "v_ptr"), f"*{name}")
    types |= {"scale_ptr": "*fp16", "offset_ptr": "*fp16", "path_ptr": "*i16", "scale_log2": "fp32"}
    types |= dict.fromkeys(("part_ptr", "top_ptr", "total_ptr"), "*fp32")
    if bits:
        types["weight_ptr"] = "*i8" if bits == 8 else "*u8"
    product: dict[str, Any] = {"I": 4096, "O": 4096, "BITS": bits, "OFFSET": bits > 0, "BIAS": True}
    product |= {"BLOCK_I": blocks.inputs, "BLOCK_O": blocks.outputs}
    for tiles in (1, 2, 4):
        constants = product | {"TILES": tiles}
        compile_and_print(
            fixed_tile_product_kernel, constants, types, blocks.warps, blocks.stages, capability, case, **UNFUSED
        )
    padded = max(16, triton.next_power_of_2(head_dim))
    attention: dict[str, Any] = {"G": 8, "R": heads, "H": 8 * heads, "D": head_dim, "HEADS": min(heads, TILE_ROWS)}
    attention |= {"BLOCK_K": spans.block, "BLOCK_D": padded, "SPAN": spans.span, "BLOCK_T": LOOKED_AT_ONCE}
    attention |= {"BLOCK_S": JOINED_AT_ONCE}
    for chain in (False, True):
        constants = attention | {"CHAIN": chain, "WINDOWED": capability == 90}
        constants |= {"BY_PATH": not chain or dtype == torch.float32}
        compile_and_print(
            aligned_attention_kernel, constants, types, spans.warps, spans.stages, capability, case, **UNFUSED
        )
    compile_and_print(key_numbers_kernel, attention, types, 1, 1, capability, case)
    constants = attention | {"CHAIN": False, "WINDOWED": capability == 90}
    compile_and_print(join_spans_kernel, constants, types, 4, 2, capability, case, **UNFUSED)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
