"""The sampling benchmark measures steps that are what they say, and says what it has not measured."""

from __future__ import annotations

import pytest
import torch

from benchmarks.sampling import (
    FILTERED,
    KINDS,
    RIVALS,
    SAMPLED,
    Step,
    TreeStep,
    aims,
    lines,
    measure,
    measure_tree,
    peak_bytes,
    rivals,
)
from spec_sdk.tree import DrawKind

CPU = torch.device("cpu")


def test_a_case_has_every_rival_and_a_ratio() -> None:
    case = measure(2, 500, torch.float32, CPU, SAMPLED, seconds=0.05)
    assert tuple(case["rivals"]) == RIVALS
    assert all(one["seconds"] > 0 and one["peak_bytes"] > 0 for one in case["rivals"].values())
    assert case["steps_in_which_exact_and_reference_differ"] == 0
    assert len(lines(case)) == 4 and lines(case)[0].split()[:2] == ["1.00", "transformers"]
    results = {aim["aim"]: aim["result"] for aim in aims({"cases": [case], "device": "cpu"})}
    assert {result for aim, result in results.items() if aim.startswith("GPU")} == {"not measured here"}
    assert results["cpu: exact is faster than reference"] in ("met", "missed")


def test_filtered_cases_leave_transformers_out() -> None:
    """Its function takes logits that a processor has filtered already."""
    assert "transformers" not in rivals([Step(2, 500, torch.float32, CPU, FILTERED, 0)], FILTERED)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_case_is_drawn_as_it_says(kind: DrawKind) -> None:
    case = measure_tree(kind, 500, torch.float32, CPU, SAMPLED, seconds=0.02)
    assert tuple(case["rivals"]) == ("reference", "exact", "sigmoid") and lines(case)[0].split()[0] == "1.00"
    assert case["steps_in_which_exact_and_reference_differ"] == 0
    (judged, _) = aims({"cases": [case], "device": "cpu"})
    assert judged["result"] in ("met", "missed")
    step = TreeStep(kind, 500, torch.float32, CPU, SAMPLED, 0)
    assert len(step.drawn) >= 4 + 4 + 4 and step.target.shape[0] > 12


def test_peak_memory_counts_what_is_held_at_once() -> None:
    def two_rows() -> float:
        first, second = torch.ones(1 << 18), torch.ones(1 << 18)
        return float((first + second).sum())

    assert 3 << 20 <= peak_bytes(two_rows, CPU) < 4 << 20
