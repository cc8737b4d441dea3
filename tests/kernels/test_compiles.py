"""The kernels compile for NVIDIA GPUs, to machine code, on a machine without one (the interpreter accepts far more):
registers, spills, shared memory, and whether copies go on while others are waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FULL

pytest.importorskip("triton")

from spec_sdk_backends.interleaved_weights import Interleaving
from tests.kernels.compile_interleaved import GPUS, PRODUCTS, tile_on
from tests.kernels.machine_code import Compiled, compiled_by

# type, head dim, rows per KV head, whether the tree grows, compute capability
CASES = (
    "bf16,64,64,growing,80",
    "fp32,256,64,closed,90",
)
"""Both capabilities, a growing tree, and the largest tiles."""
OTHERS = (
    "bf16,128,1,closed,90",
    *("bf16,64,1,closed,80", "bf16,128,64,growing,80", "bf16,128,4,closed,90"),
    "bf16,64,4096,closed,90",
    *(f"bf16,{dim},{rows}" for dim in (64, 128) for rows in ("64,growing,90", "4096,closed,80")),
    "bf16,64,1,closed,90",
    "bf16,128,1,closed,80",
    "bf16,128,4096,closed,90",
    "fp16,96,48,growing,80",
    "bf16,256,64,growing,90",
    *("bf16,576,20,growing,80", "bf16,576,1280,closed,90", "bf16,320,32,growing,90"),
    "bf16,256,1,growing,80",
    "fp32,64,4096,closed,80",
    "fp32,128,64,growing,90",
)
"""Every type, and heads that are padded."""
FUSED = ("bf16,128,32,8,4096,90",)
FUSED_OTHERS = (
    "bf16,128,40,8,5120,90",
    "bf16,64,32,8,2048,80",
    "bf16,128,32,8,4096,80",
    "bf16,64,32,8,2048,90",
    "fp32,128,40,8,5120,90",
    "fp16,80,32,32,16384,80",
)
RECOVERY = ("bf16,32,4096,14336,80",)
RECOVERY_OTHERS = (
    "bf16,1,4096,14336,80",
    "bf16,32,2048,8192,90",
    "bf16,64,4096,14336,90",
    "fp32,8,2048,8192,80",
    "fp16,1,576,1536,90",
)
IN_BITS = ("4,0,1,H100",)
IN_BITS_OTHERS = (
    *("6,0,64,4090", "4,1,1,A100", "4,0,16,4090", "4,1,64,H100", "5,1,1,H100", "5,0,32,4090", "5,1,64,A100"),
    *("6,1,1,A100", "6,0,32,H100", "8,0,1,H100", "8,1,64,4090", "8,0,64,H100"),
)
MOST_SHARED = 99 * 1024
"""What a block may have on compute capability 8.6."""
UNSPILLED = ("bf16,64,", "bf16,128,", "fp16,96,", "bf16,576,", "bf16,320,")
"""Where no register may be spilled; float32 and heads of 256 do not fit."""
MANY_ROWS = tuple(f"bf16,{dim},4096," for dim in (64, 128))
"""Whose programs have two stages and four warps, as was fastest on an H200: no copies go on while others are waited
for, and few registers may be spilled.
"""
MOST_SPILLED = {"90": 144, "80": 304}
"""Bytes of a thread, by compute capability."""


def parametrized(cases: tuple[str, ...], others: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [*cases, *(pytest.param(case, marks=pytest.mark.full) for case in others)])


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compiled_by("compile_kernels", [*CASES, *(OTHERS if FULL else ())], tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*FUSED, *(FUSED_OTHERS if FULL else ())]
    return compiled_by("compile_fused_block", cases, tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def recovery(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*RECOVERY, *(RECOVERY_OTHERS if FULL else ())]
    return compiled_by("compile_recovery", cases, tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*IN_BITS, *(IN_BITS_OTHERS if FULL else ())]
    return compiled_by("compile_interleaved", cases, tmp_path_factory.mktemp("triton"))


@parametrized(CASES, OTHERS)
def test_tree_attention(case: str, attention: Compiled) -> None:
    kernels = attention[case]
    assert [name for name, _ in kernels] == [
        *("tree_attention_kernel", "tree_attention_kernel", "visible_blocks_kernel", "combine_splits_kernel")
    ]
    for name, facts in kernels:
        assert facts["code"] > 0
        assert facts["shared"] <= MOST_SHARED, f"{name}: more shared memory than a block may have"
        if case.startswith(MANY_ROWS):
            assert facts["stack"] <= MOST_SPILLED[case[-2:]], f"{name} spills registers: {facts}"
        elif case.startswith(UNSPILLED):
            assert facts["stack"] == facts["local"] == 0, f"{name} spills registers: {facts}"
    # in the loop over the prefix and in the one over the tree; the other waits are at their ends
    for _, loops in kernels[: 0 if case.startswith(MANY_ROWS) else 2]:
        assert loops["overlaps"] >= 2, "the loads of a loop are not pipelined"
        assert loops["full_waits"] <= loops["overlaps"], "copies are waited for in every step of a loop"


@parametrized(FUSED, FUSED_OTHERS)
def test_small_operations_of_a_block(case: str, fused: Compiled) -> None:
    names = ["add_rms_norm_kernel", "rotate_and_store_kernel", "gated_activation_kernel"]
    names += ["largest_of_parts_kernel", "largest_of_all_kernel", "top_of_parts_kernel", "top_of_all_kernel"]
    names += 2 * ["matrix_vector_kernel"]
    kernels = fused[case]
    if case.endswith(",90") and not case.startswith("fp32"):
        kernels, products = kernels[:-6], kernels[-6:]
        kinds = ["few_rows_kernel", "summed_few_rows_kernel", "gated_few_rows_kernel", "rotated_few_rows_kernel"]
        assert [name for name, _ in products] == [*kinds, "gated_few_rows_kernel", "rotated_few_rows_kernel"]
        for name, facts in products:
            assert facts["stack"] == facts["local"] == 0, f"{name} spills registers: {facts}"
            assert facts["overlaps"] >= 1 and facts["shared"] <= 227 * 1024
        for name, facts in products[:-1]:
            assert facts["wgmmas"] > 0, f"{name}: rows are not multiplied by what sm_90 has for 64"
            # beside it there is room for the launch behind
            assert facts["registers"] <= 128, f"{name}: {facts}"
        # a warp to a program
        assert products[-1][1]["mmas"] > 0 and products[-1][1]["registers"] <= 168
    assert [name for name, _ in kernels] == names
    for name, facts in kernels:
        assert facts["stack"] == facts["local"] == 0, f"{name} spills registers: {facts}"
        # so that a multiprocessor holds all the threads that it can; products have their weights in registers
        most = 64 if name != "matrix_vector_kernel" else 255 if case.startswith("fp32") else 168
        assert facts["registers"] <= most and facts["shared"] <= 4096, f"{name}: {facts}"


@parametrized(RECOVERY, RECOVERY_OTHERS)
def test_recovery(case: str, recovery: Compiled) -> None:
    products, others = recovery[case][:2], recovery[case][2:]
    assert [name for name, _ in products] == ["recovered_product_kernel"] * 2
    assert [name for name, _ in others] == ["recovered_norm_kernel", "recovered_activation_kernel"]
    for name, facts in recovery[case]:
        assert facts["stack"] == facts["local"] == 0, f"{name} spills registers: {facts}"
        assert facts["shared"] <= MOST_SHARED, f"{name}: more shared memory than a block may have"
    for _, facts in products:
        assert facts["overlaps"] == 1 and facts["full_waits"] <= 1, f"not pipelined: {facts}"


INSTRUCTIONS = {4: 7.2, 5: 11.5, 6: 10.5, 8: 8.6}
"""Of a thread for one weight in so many bits, at most: so many are as fast as an H100's memory, or take two thirds of
its speed.
"""


@parametrized(IN_BITS, IN_BITS_OTHERS)
def test_products_with_weights_in_few_bits(case: str, interleaved: Compiled) -> None:
    *of_weights, gpu = case.split(",")
    bits, offsets, rows = map(int, of_weights)
    capability, _, room = GPUS[gpu]
    assert [name for name, _ in interleaved[case]] == [*(kernel.__name__ for kernel, _, _ in PRODUCTS), "expand_kernel"]
    for (_, inputs, outputs), (name, facts) in zip(PRODUCTS, interleaved[case], strict=False):
        tile = tile_on(gpu, inputs, outputs, rows, Interleaving(bits), bool(offsets))
        expected = tile.shared_bytes(rows, Interleaving(bits), bool(offsets), capability // 10)
        assert facts["shared"] <= expected <= (room - 1) * 1024, f"{name}: {facts}"
        assert facts["stack"] <= 32 and facts["local"] <= 16, f"{name} spills registers: {facts}"
        assert facts["overlaps"] >= 1 and facts["full_waits"] <= 1, f"{name} is not pipelined: {facts}"
        assert facts["mmas"] + facts["wgmmas"] > 0, f"{name}: not by tensor cores"
        weights = tile.outputs * tile.inputs / (32 * tile.warps)
        assert 4 < facts["loop"] / weights < INSTRUCTIONS[bits], f"{name}: {facts}"
    _, facts = interleaved[case][-1]
    assert facts["stack"] == facts["local"] == 0 and facts["registers"] <= 64


def test_a_spill_is_seen(attention: Compiled) -> None:
    """float32 heads of 256 do not fit: the tools must say so, or the tests above prove nothing."""
    (_, facts), *_ = attention["fp32,256,64,closed,90"]
    assert facts["stack"] > 0 and facts["local"] > 0 and facts["registers"] >= 250


def test_a_growing_prefix_and_tree_compile_nothing() -> None:
    """Passes of other lengths, batches and splits take the kernels that the first one compiled. Tree attention has a
    second form, with a list of visible blocks, and combines few, some or many parts; speculative attention has one for
    prefixes that are longer than the window, and combines few parts or many, of one request and of all in their slots;
    attention in the order of positions has one for chains, and products have three, of one, two and four tiles.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("launch_keys.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    launches = [line.split(" ", 1) for line in done.stdout.splitlines()]
    for kernel, most in (
        *(("tree_attention_kernel", 2), ("visible_blocks_kernel", 1), ("combine_splits_kernel", 3)),
        *(("speculative_split_kernel", 4), ("combine_speculation_kernel", 8)),
        *(("aligned_attention_kernel", 2), ("key_numbers_kernel", 1), ("join_spans_kernel", 2)),
        ("fixed_tile_product_kernel", 3),
    ):
        keys = [key for name, key in launches if name == kernel]
        assert len(keys) > 4 and len(set(keys)) <= most
