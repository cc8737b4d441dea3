"""The bounds of Appendix A, worked out by hand, and how the closing table shows them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spec_sdk.error_bounds import error_bounds
from spec_sdk.report import attention_rows, scientific, spark

CONSTANTS = {"mlp": [1.0, 3.0], "attention": [0.5, 2.0], "output": [10.0, 0.1]}


def one_pass(hit: list[bool | None], **more: Any) -> dict[str, Any]:
    return {
        "hit": hit,
        "error": [0.1, 0.2],
        "difference": [0.3, 0.4],
        "state_norm": [7.0, 3.0, 5.0],
        "space": "heads",
        "constants": CONSTANTS,
        **more,
    }


@pytest.mark.parametrize(
    ("given", "worst", "linear", "squares"),
    [
        # layer 0: 2 x 0.3 x 10 = 6; layer 1: 4 x (3 x 6 + 0.4 x 0.1)
        (
            one_pass([True, True]),
            4 * (3 * 6 + 0.04),
            3 * (1 + 1 + 2 + 3) + 0.04 * (1 + 3),
            (0.1 * 7) ** 2 + (0.2 * 3) ** 2,
        ),
        # a miss adds nothing, but carries on what came before
        (one_pass([True, False]), 4 * 3 * 6, 3 * (1 + 1 + 2 + 3), (0.1 * 7) ** 2),
        (one_pass([None, True]), 4 * 0.04, 0.04 * (1 + 3), (0.2 * 3) ** 2),
        # already measured in the residual stream
        (one_pass([False, True], space="residual"), 4 * 0.4, 0.4 * (1 + 3), (0.2 * 3) ** 2),
    ],
)
def test_all_bounds(given: dict[str, Any], worst: float, linear: float, squares: float) -> None:
    bounds = error_bounds([given])
    assert bounds is not None
    assert bounds["worst_case"] == pytest.approx(worst / 5)
    assert bounds["worst_case_log10"] == pytest.approx(math.log10(worst / 5))
    assert bounds["linearised"] == pytest.approx(linear / 5) and bounds["linearised"] <= bounds["worst_case"] + 1e-12
    assert bounds["probabilistic"] == pytest.approx(math.sqrt((4 - math.log(0.05)) * squares / 0.5) / 5)
    assert (bounds["kind"], bounds["constants"]["alpha"], bounds["constants"]["largest_state"]) == (
        "estimate",
        3.0,
        7.0,
    )


def test_a_run_is_its_worst_pass_and_its_constants_come_once() -> None:
    later = one_pass([True, True], constants=None)
    both = error_bounds([one_pass([None, True]), later])
    assert both is not None and both["worst_case"] == pytest.approx(4 * (3 * 6 + 0.04) / 5)


def test_nothing_accepted_is_no_error() -> None:
    bounds = error_bounds([one_pass([False, None])])
    assert bounds is not None
    assert (bounds["worst_case"], bounds["worst_case_log10"]) == (0.0, None)
    assert (bounds["linearised"], bounds["probabilistic"]) == (0.0, 0.0)


def test_to_first_order_it_is_the_worst_case_and_with_one_constant_the_paper_s_sum() -> None:
    layers, alpha, beta, delta = 5, 1e-4, 3e-4, 0.2
    alike = {
        "hit": [True] * layers,
        "error": [0.1] * layers,
        "difference": [delta] * layers,
        "state_norm": [1.0] * (layers + 1),
        "space": "residual",
        "constants": {"mlp": [alpha] * layers, "attention": [beta] * layers, "output": [1.0] * layers},
    }
    bounds = error_bounds([alike])
    assert bounds is not None
    assert bounds["linearised"] == pytest.approx(bounds["worst_case"], rel=1e-5)
    paper = sum(1 + (layers - i) * (alpha + beta) for i in range(1, layers + 1)) * delta
    assert bounds["linearised"] == pytest.approx(paper + layers * alpha * delta)


def test_without_a_guess_or_an_estimate_there_are_no_bounds() -> None:
    assert error_bounds([one_pass([None, None])]) is None
    assert error_bounds([one_pass([True, True], constants=None)]) is None
    assert error_bounds([one_pass([True, True], state_norm=[1.0, None, None])]) is None


def test_products_too_large_for_a_float_keep_their_power_of_ten() -> None:
    layers = 200
    deep = {
        "hit": [True] * layers,
        "error": [0.1] * layers,
        "difference": [1.0] * layers,
        "state_norm": [1.0] * (layers + 1),
        "space": "residual",
        "constants": {"mlp": [99.0] * layers, "attention": [9.0] * layers, "output": [1.0] * layers},
    }
    bounds = error_bounds([deep])
    assert bounds is not None and bounds["worst_case"] is None
    assert bounds["worst_case_log10"] == pytest.approx(2 + 199 * 3, abs=0.01)
    assert bounds["linearised"] == pytest.approx(sum(1 + 99 + 108 * behind for behind in range(layers)))


def test_the_table() -> None:
    bounds = error_bounds([one_pass([True, True])])
    assert bounds is not None
    attention = {"hit_rate_per_layer": [0.0, None, 0.5, 1.0], "mean_error": 0.15, "max_error": 0.2}
    rows = dict(attention_rows({**attention, "error_bounds": {**bounds, "worst_case_log10": 34.5}}))
    assert list(rows.values()) == ["▁·▅█", "0.150 / 0.200", "3.2e34", "4.23", rows["95% error bound (estimate)"]]
    assert [scientific(x) for x in (0.0, 2.5, -4.0, 400.25)] == ["1.00", "316.23", "1.0e-4", "1.8e400"]
    assert spark([]) == ""
    assert len(attention_rows({**attention, "error_bounds": None})) == 2
