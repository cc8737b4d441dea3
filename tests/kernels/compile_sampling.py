"""Compiles the sampling kernels without a GPU (:mod:`machine_code`).

Arguments: cases, each with commas between the dtype of the logits (fp16, bf16 or fp32); plain or filtered; softmax or
sigmoid; compute capability; chain or tree (several draws at a node, and distributions that are given as probabilities).
"""

from __future__ import annotations

import sys

from spec_sdk_backends.drawing_kernels import draw_kernel, tile_masses_kernel
from spec_sdk_backends.kept_tokens import ROOM, WARPS
from spec_sdk_backends.kept_tokens import TILE as KEPT_TILE
from spec_sdk_backends.kept_tokens_kernel import kept_tokens_kernel
from spec_sdk_backends.rejection_kernels import decide_kernel, row_statistics_kernel
from spec_sdk_backends.row_drawing import TILE as DRAWN_TILE
from spec_sdk_backends.row_drawing import WARPS as DRAWN_WARPS
from tests.kernels.machine_code import compile_and_print

FLOATS = ("near_ptr", "least_ptr", "largest_ptr", "max_ptr", "sum_ptr", "mass_ptr", "plain_ptr", "given_ptr")
LONGS = ("row_offset_ptr", "draw_ptr", "root_ptr", "verdict_ptr")


def types_of(dtype: str) -> dict[str, str]:
    """Of the arguments, for logits of ``dtype``."""
    types = {"p_ptr": f"*{dtype}", "q_ptr": f"*{dtype}", "logits_ptr": f"*{dtype}", "number": "i64"}
    types |= dict.fromkeys(("uniform_ptr", "shaping_ptr", "drawn_ptr"), "*fp64")
    types |= dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(LONGS, "*i64")
    return types | dict.fromkeys(("temperature", "alpha", "width"), "fp32")


def main(case: str) -> None:
    dtype, filters, distributions, capability, shape = case.split(",")
    tree = shape == "tree"
    constants = {
        "FILTERED": filters == "filtered", "SIGMOID": distributions == "sigmoid", "PARTS": 64, "ALIGNED": True,
        "TILE": 1024, "TILES": 256, "GIVEN": tree, "MOST": 4 if tree else 1, "WIDE": 4096,
    }  # fmt: skip
    if filters == "filtered":
        cuts = {"ALIGNED": True, "ROOM": ROOM, "TILE": KEPT_TILE}
        compile_and_print(kept_tokens_kernel, cuts, types_of(dtype), WARPS, 3, int(capability), case)
    one_row = {"FILTERED": filters == "filtered", "TILE": DRAWN_TILE, "TILES": 64}
    for kernel in (tile_masses_kernel, draw_kernel):
        compile_and_print(kernel, one_row, types_of(dtype), DRAWN_WARPS, 3, int(capability), case)
    for kernel in (row_statistics_kernel, decide_kernel):
        warps = 16 if tree and kernel is decide_kernel else 4
        compile_and_print(kernel, constants, types_of(dtype), warps, 3, int(capability), case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
