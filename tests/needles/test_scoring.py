"""When an answer holds the right one."""

from __future__ import annotations

import pytest

from spec_sdk.needles import holds


@pytest.mark.parametrize(
    ("answer", "right", "held"),
    [
        ("It is birch bark.", "birch bark", True),
        ("**Birch-Bark!**", "birch bark", True),
        ("BIRCH\n BARK", "birch bark", True),
        ("bark of a birch", "birch bark", False),
        ("birchbark", "birch bark", False),
        ("There are 73.", "73", True),
        ("There are 473.", "73", False),
        ("There are 7 3.", "73", False),
        ("`1a2b3c`", "1a2b3c", True),
        ("1A2B3C", "1a2b3c", True),
        ("1a2b3c4", "1a2b3c", False),
        ("1a2b3", "1a2b3c", False),
        ("Ｂirch bark", "birch bark", True),
        ("", "birch bark", False),
        ("anything", "", False),
    ],
)
def test_holds(answer: str, right: str, held: bool) -> None:
    assert holds(answer, right) is held
