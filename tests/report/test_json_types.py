"""JSON becomes what the annotations of a dataclass say, and is refused in a line that names the value otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from spec_sdk.errors import UserError
from spec_sdk.json_lines import JsonObject


@dataclass
class Inner:
    pairs: Sequence[tuple[int, int]]
    limit: float | None = None


@dataclass
class Outer:
    name: str
    kind: Literal["a", "b"]
    seconds: float
    counts: Mapping[int, tuple[int, float]]
    inner: Inner | None
    anything: Any = 3
    flags: Sequence[bool | None] = ()


WHOLE = {"name": "x", "kind": "a", "seconds": 2, "counts": {"3": [1, 2]}, "inner": {"pairs": [[1, 2]]}}


def read(**changed: Any) -> Outer:
    return JsonObject("f.jsonl line 7", {**WHOLE, **changed}).typed(Outer)


def test_values_have_the_types_that_are_annotated() -> None:
    found = read(unknown=1, flags=[True, None])
    assert found == Outer("x", "a", 2.0, {3: (1, 2.0)}, Inner([(1, 2)]), 3, [True, None])
    assert isinstance(found.seconds, float) and isinstance(found.counts[3][1], float)
    assert read(inner=None).inner is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": None}, "null is no value of 'name'"),
        ({"name": 1}, "'name' is 1, not a text"),
        ({"seconds": True}, "'seconds' is true, not a number"),
        ({"kind": "c"}, "'kind' is \"c\", not one of a, b"),
        ({"counts": {"x": [1, 2]}}, "'counts' has \"x\", not a whole number"),
        ({"counts": {"1": [1, "2"]}}, "'counts' has [1, \"2\"], not a whole number and a number"),
        ({"counts": [1]}, "'counts' is [1], not an object"),
        ({"flags": [1]}, "'flags' has 1, not true or false"),
        ({"inner": 5}, "'inner' is 5, not an object of pairs, limit"),
        ({"inner": {"pairs": [[1, 2, 3]]}}, "'inner' has [1, 2, 3], not 2 whole numbers"),
        ({"inner": {"limit": 1}}, "'inner' has null, not a list"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as raised:
        read(**changed)
    assert str(raised.value) == f"f.jsonl line 7: {told}"


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="line 1: there is no 'kind'"):
        JsonObject("line 1", {"name": "x"}).typed(Outer)
