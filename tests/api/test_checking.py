"""The options of requests are checked once each, and every time they are new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spec_sdk import SamplingParams, UserError
from spec_sdk.api import checking
from spec_sdk.api.checking import plan_of
from spec_sdk.config.composing import settings_for


def test_what_was_checked_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(["pipeline=vanilla", "max_new_tokens=9"])
    plain, asked = plan_of({}, settings), plan_of({"max_new_tokens": 1, "temperature": 0.5, "top_k": 1}, settings)
    assert (plain.max_new_tokens, plain.sampling) == (9, SamplingParams())
    assert (asked.max_new_tokens, asked.sampling) == (1, SamplingParams(temperature=0.5, top_k=1))

    def again(values: Any) -> Any:
        raise AssertionError(f"checked again: {values}")

    for name in ("checked_run", "checked_sampling"):
        monkeypatch.setattr(checking, name, again)
    assert plan_of({}, settings) == plain
    assert plan_of({"top_k": 1, "temperature": 0.5, "max_new_tokens": 1}, settings) == asked
    with pytest.raises(AssertionError, match="checked again"):
        plan_of({"max_new_tokens": 7919}, settings)
    with pytest.raises(AssertionError, match="checked again"):
        plan_of({"seed": 7919}, settings)


@pytest.mark.parametrize("name", ["max_new_tokens", "top_k"])
@pytest.mark.parametrize("value", [True, [1], 1.5, "one"])
def test_a_value_equal_to_one_that_was_checked_is_still_refused(name: str, value: object) -> None:
    settings = settings_for(["pipeline=vanilla"])
    good: Any = {name: 1}
    plan_of(good, settings)
    bad: Any = {name: value}
    with pytest.raises(UserError, match=f"{name}: .* is not a whole number"):
        plan_of(bad, settings)


def test_numpys_numbers_are_numbers() -> None:
    settings = settings_for(["pipeline=vanilla"])
    asked: Any = {
        "temperature": np.float32(0.5),
        "top_k": np.int32(7),
        "seed": np.int64(3),
        "max_new_tokens": np.int16(9),
        "n": np.uint8(2),
        "presence_penalty": np.float32(0.25),
    }
    plan = plan_of(asked, settings)
    assert plan.sampling == SamplingParams(temperature=0.5, top_k=7, seed=3) and type(plan.sampling.top_k) is int
    assert (plan.max_new_tokens, plan.n) == (9, 2) and type(plan.max_new_tokens) is int
    quarter: Any = np.float32(0.25)
    given = plan_of({"sampling": SamplingParams(temperature=quarter)}, settings)
    assert type(given.sampling.temperature) is float
    no_number: Any = {"max_new_tokens": np.bool_(True)}
    with pytest.raises(UserError, match="max_new_tokens: "):
        plan_of(no_number, settings)
