"""The kernels of speculative attention compile for NVIDIA GPUs on a machine without one."""

from __future__ import annotations

import pytest

from tests.conftest import FULL

pytest.importorskip("triton")

from tests.kernels.machine_code import Compiled, compiled_by

CASES = ("bf16,128,4,closed,90",)
OTHERS = (
    "bf16,64,4,growing,80",
    "bf16,64,4,growing,90",
    "bf16,128,4,growing,80",
    "bf16,96,4,growing,90",
    "bf16,128,64,closed,80",
)
MOST_SPILLED = 8
"""Bytes: one value that window and middle together keep from before their loops to behind them."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*CASES, *(OTHERS if FULL else ())]
    return compiled_by("compile_speculative", cases, tmp_path_factory.mktemp("triton"))


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.full) for case in OTHERS)])
def test_machine_code(case: str, compiled: Compiled) -> None:
    names = [name for name, _ in compiled[case]]
    assert names == 3 * ["speculative_split_kernel"] + 3 * ["combine_speculation_kernel"]
    for name, facts in compiled[case]:
        assert facts["code"] > 0
        assert facts["shared"] <= 99 * 1024
        assert facts["stack"] <= MOST_SPILLED and facts["local"] <= 4, f"{name} spills registers: {facts}"
        if name == "speculative_split_kernel":
            assert facts["overlaps"] >= 1 and facts["full_waits"] <= facts["overlaps"], f"not pipelined: {facts}"
