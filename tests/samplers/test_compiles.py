"""The sampling kernels compile for NVIDIA GPUs, to machine code, on a machine without one."""

from __future__ import annotations

import pytest

from tests.conftest import FULL

pytest.importorskip("triton")

from tests.kernels.machine_code import Compiled, compiled_by

CASES = ("bf16,filtered,softmax,90,chain",)
OTHERS = (
    "bf16,plain,softmax,80,tree",
    "bf16,plain,softmax,80,chain",
    "bf16,filtered,softmax,80,tree",
    "fp32,filtered,sigmoid,90,tree",
    "fp32,filtered,softmax,90,chain",
    "fp16,filtered,sigmoid,90,chain",
    "fp32,plain,sigmoid,80,tree",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*CASES, *(OTHERS if FULL else ())]
    return compiled_by("compile_sampling", cases, tmp_path_factory.mktemp("triton"))


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.full) for case in OTHERS)])
def test_machine_code(case: str, compiled: Compiled) -> None:
    filtered = ["kept_tokens_kernel"] if "filtered" in case else []
    names = [*filtered, "tile_masses_kernel", "draw_kernel", "row_statistics_kernel", "decide_kernel"]
    assert [name for name, _ in compiled[case]] == names
    for name, facts in compiled[case]:
        assert facts["code"] > 0
        assert facts["stack"] == facts["local"] == 0, f"{name} spills registers: {facts}"
