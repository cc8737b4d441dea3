from __future__ import annotations

import pytest

from spec_sdk.counted import counted
from spec_sdk.engine.faults import count_fault


@pytest.mark.parametrize(("count", "told"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs")])
def test_one_has_no_s(count: int, told: str) -> None:
    assert counted(count, "job") == told


def test_lines_of_one() -> None:
    assert count_fault([0, 0], 1, "tree") == "it returned 2 trees for 1 request"
    assert count_fault(None, 1, "tree") == "it returned None, and no list of trees"
