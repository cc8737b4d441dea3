"""The kernels of ``deterministic=true`` compile for NVIDIA GPUs, and to the same products in every form that passes of
other sizes take.
"""

from __future__ import annotations

import pytest

from tests.conftest import FULL

pytest.importorskip("triton")

from tests.kernels.machine_code import Compiled, compiled_by
from tests.kernels.test_compiles import MOST_SHARED, parametrized

# type, head dim, query heads of a KV head, bits of the weights, compute capability
CASES = ("bf16,64,3,4,80",)
OTHERS = (
    *("bf16,128,4,0,90", "fp32,64,3,0,80", "bf16,128,4,0,80", "bf16,64,3,8,90", "fp16,96,8,8,80", "bf16,128,32,4,90"),
    *("fp32,128,4,0,90", "bf16,256,2,0,90"),
)
MAY_SPILL = ("bf16,256,", "fp32,128,")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cases = [*CASES, *(OTHERS if FULL else ())]
    return compiled_by("compile_deterministic", cases, tmp_path_factory.mktemp("triton"))


@parametrized(CASES, OTHERS)
def test_registers_and_memory(case: str, compiled: Compiled) -> None:
    """No register is spilled, shared memory fits, and the loops of products and attention are pipelined."""
    names = [*["fixed_tile_product_kernel"] * 3, *["aligned_attention_kernel"] * 2]
    assert [name for name, _ in compiled[case]] == [*names, "key_numbers_kernel", "join_spans_kernel"]
    for name, facts in compiled[case]:
        assert facts["shared"] <= MOST_SHARED, f"{name}: more shared memory than a block may have"
        if not case.startswith(MAY_SPILL):
            assert facts["stack"] == facts["local"] == 0, f"{name} spills registers: {facts}"
        if facts["mmas"]:
            assert facts["overlaps"] == 1 and facts["full_waits"] <= 1, f"{name} is not pipelined: {facts}"


@parametrized(CASES, OTHERS)
def test_every_form_makes_the_same_products(case: str, compiled: Compiled) -> None:
    """So many tiles, so many times the instructions of one; none that takes more rows at once, nor another layout of
    the sums; and no rounding that is left out in one form, where the compiler would fuse a product and a sum.
    """
    products, attention = ([facts for _, facts in part] for part in (compiled[case][:3], compiled[case][3:5]))
    assert products[0]["mmas"] > 0 and attention[0]["mmas"] > 0
    assert [facts["mmas"] for facts in products] == [tiles * products[0]["mmas"] for tiles in (1, 2, 4)]
    assert attention[0]["mmas"] == attention[1]["mmas"]
    for forms in (products, attention):
        assert len({facts["layout"] for facts in forms}) == 1
    assert not any(facts["wgmmas"] or facts["fmas"] for _, facts in compiled[case])
