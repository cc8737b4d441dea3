"""``task=cost_curve``: what passes of the target and the draft model cost on this machine, by their number of nodes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_sdk.contracts import CostCurve, PassCosts, Task, option
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.tables import number, print_table

if TYPE_CHECKING:
    from spec_sdk.bench.pass_costs import MeasuredCosts


@dataclass
class CostCurveConfig:
    """Options of ``task=cost_curve``."""

    kept: bool = option(False, "show what was measured before, if it was, instead of measuring anew")


class ShowCostCurve(Task):
    """Measures what passes of a pipeline's models cost on this machine, for policies to go by, and prints it."""

    name = "cost_curve"
    Config = CostCurveConfig
    config: CostCurveConfig
    without = ("compare", "constraint", "error_bounds", "prompt", "prompt_file", "audio")

    def run(self, app: Settings) -> int:
        """A table goes to stdout; returns 0. Raises UserError where nothing can be measured."""
        from spec_sdk.bench.kept_costs import place
        from spec_sdk.pipeline import build_pipeline

        pipeline = build_pipeline(app, Registry.discover())
        costs = pipeline.costs_of(pipeline.engine.drafter)
        found = self._found(costs)
        print(f"{pipeline.target_name}, {pipeline.dtype}, {pipeline.backend.describe()}")
        tables = {f"target: {pipeline.target_name}": found.target}
        if found.draft is not None:
            tables[f"draft model: {pipeline.draft_name}"] = found.draft
        for title, curve in tables.items():
            print_table(f"{title} (behind so many tokens of context)", *table_of(curve), file=sys.stdout)
        print(f"measured in {found.measured_s:.1f} s; kept in {place(costs.facts())}", file=sys.stderr)
        return 0

    def _found(self, costs: MeasuredCosts) -> PassCosts:
        if costs.unavailable is not None:
            raise UserError(f"task=cost_curve: {costs.unavailable}")
        found = (costs.kept() if self.config.kept else None) or costs.measure()
        if found is None:
            raise UserError("task=cost_curve: a pass takes seconds on this machine, too long for a curve of them")
        return found


def table_of(curve: CostCurve) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: milliseconds, and how many times a pass of one node, at every context."""
    columns = ["nodes"]
    for context in curve.contexts:
        columns += [f"ms behind {context}", "× one node"]
    rows = []
    for nodes in sorted({nodes for _, nodes in curve.points}):
        row = [str(nodes)]
        for context in curve.contexts:
            # what lies between points is not measured, so it is not shown
            there = (context, nodes) in curve.points
            seconds = curve.at(nodes, context) if there else None
            row.append(number(None if seconds is None else 1000 * seconds))
            row.append(number(None if seconds is None else seconds / curve.at(1, context)))
        rows.append(row)
    return columns, rows
