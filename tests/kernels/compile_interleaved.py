"""Compiles products with few rows and weights in few bits without a GPU (:mod:`machine_code`), in the tiles that are
chosen for one.

Arguments: cases, each with commas between bits; offsets, 0 or 1; rows; and a GPU of :data:`GPUS`.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from spec_sdk_backends.dependent_launches import SINCE
from spec_sdk_backends.few_rows_kernel import (
    few_rows_kernel,
    gated_few_rows_kernel,
    rotated_few_rows_kernel,
    summed_few_rows_kernel,
)
from spec_sdk_backends.few_rows_tiles import FewRowsTile
from spec_sdk_backends.interleaved_kernels import expand_kernel
from spec_sdk_backends.interleaved_weights import Interleaving
from tests.kernels.machine_code import compile_and_print

GPUS = {"A100": (80, 108, 164), "4090": (89, 128, 100), "H100": (90, 132, 228)}
"""Compute capability, multiprocessors, and KiB of shared memory of each."""
HALVES = (
    *("x_ptr", "bias_ptr", "h_ptr", "gain_ptr", "out_ptr", "scaled_ptr"),
    *("cos_ptr", "sin_ptr", "q_out_ptr", "k_out_ptr", "v_out_ptr"),
)
PRODUCTS = (
    (few_rows_kernel, 4096, 4096),
    (summed_few_rows_kernel, 14336, 4096),
    (gated_few_rows_kernel, 4096, 28672),
    (rotated_few_rows_kernel, 4096, 6144),
)
"""Of an 8B shape: inputs and outputs."""


def tile_on(gpu: str, inputs: int, outputs: int, rows: int, form: Interleaving, offsets: bool) -> FewRowsTile:
    """The tile of a product on this GPU."""
    capability, multiprocessors, shared = GPUS[gpu]
    has = SimpleNamespace(
        multi_processor_count=multiprocessors, shared_memory_per_multiprocessor=shared * 1024, major=capability // 10
    )
    with mock.patch.object(torch.cuda, "get_device_properties", lambda device: has):
        return FewRowsTile.choose(inputs, outputs, rows, torch.device("cuda"), form=form, offsets=offsets)


def main(case: str) -> None:
    *of_weights, gpu = case.split(",")
    bits, offsets, rows = map(int, of_weights)
    form, capability = Interleaving(bits), GPUS[gpu][0]
    in_bits: dict[str, Any] = {"BITS": bits, "OFFSETS": bool(offsets)}
    types = dict.fromkeys(HALVES, "*bf16") | {"square_ptr": "*fp32", "part_ptr": "*fp32", "epsilon": "fp32"}
    for kernel, inputs, outputs in PRODUCTS:
        tile = tile_on(gpu, inputs, outputs, rows, form, bool(offsets))
        constants: dict[str, Any] = {"INPUTS": inputs, "OUTPUTS": outputs, "PARTS": tile.parts, **in_bits}
        constants |= {"BIASED": False, "SQUARES": 64, "BLOCK_Q": 64, "OVERLAPPED": capability // 10 >= SINCE}
        constants |= {"SCALED": True, "WIDTH": outputs // 2, "GELU": False, "H": 32, "G": 8, "D": 128}
        constants |= {"BLOCK_K": tile.rows_of_block(rows), "BLOCK_O": tile.outputs, "BLOCK_I": tile.inputs}
        constants |= {"AHEAD": tile.ahead, "STAGES": tile.stages}
        compile_and_print(kernel, constants, types, tile.warps, tile.stages, capability, case)
    expanded = {"INPUTS": 4096, "OUTPUTS": 4096, "CHOSEN": True, **in_bits}
    compile_and_print(expand_kernel, expanded, types | {"row_ptr": "*i64"}, 1, 1, capability, case)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
