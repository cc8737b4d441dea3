"""The kinds of trees that a verifier is held to."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.testing.tables import DrawPlan, PlannedDraw

# the short one brings its bonus token within the tokens that are looked at
CHAINS: tuple[DrawPlan, ...] = (
    [[PlannedDraw("with_replacement")]],
    [[PlannedDraw("with_replacement")]] * 3,
    [[PlannedDraw("chosen")]] * 3,
    [[PlannedDraw("without_replacement")], [PlannedDraw("chosen")], [PlannedDraw("with_replacement")]],
)
"""Trees without branches."""
TREES: tuple[DrawPlan, ...] = (
    *CHAINS,
    [[PlannedDraw("chosen"), PlannedDraw("chosen")]] * 2,
    [
        [PlannedDraw("with_replacement"), PlannedDraw("with_replacement"), PlannedDraw("with_replacement")],
        [PlannedDraw("with_replacement")],
    ],
    [[PlannedDraw("without_replacement"), PlannedDraw("without_replacement")]] * 2,
    [
        [
            PlannedDraw("with_replacement"),
            PlannedDraw("chosen", 1),
            PlannedDraw("without_replacement", 1),
            PlannedDraw("without_replacement", 1),
        ]
    ]
    * 2,
)
"""Chains, and trees of all kinds of draws: top-k, repeated samples, distinct samples, two drafters merged."""


DEEP: DrawPlan = [[PlannedDraw("with_replacement")]] * 6
"""A chain of many levels, which has few outcomes over two tokens."""


def enumerable(plans: Sequence[DrawPlan]) -> list[DrawPlan]:
    """Plans of few outcomes, in which every draw of ``plans`` is made: where nodes branch, one level at a time."""
    found: list[DrawPlan] = []
    for plan in plans:
        if all(len(draws) == 1 for draws in plan):
            found.append(plan)
            continue
        # three draws at the root have outcomes enough
        found.append([plan[0], *(draws[:1] for draws in plan[1:2] if len(plan[0]) < 3)])
        if len(plan) > 1 and (len(plan[1]) > 1 or len(plan[0]) > 2):
            found.append([plan[0][:1], plan[1]])
    return found
