"""``task=estimate``: would speculating on attention pay, on which machine, from which hit rate on? (ALSpec, App. F)

Or, with ``task.drafters``: what would drafters give on a GPU?
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from spec_sdk.contracts import Task, option
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.latency.estimate import Estimate, Question, estimate
from spec_sdk.latency.plot import plot_svg
from spec_sdk.latency.strategies import Comparison, compare
from spec_sdk.latency.strategy_plot import strategies_svg
from spec_sdk.latency.table import LatencyTable, load_table, parse_context, parse_table, show_context
from spec_sdk.registry import Registry
from spec_sdk.run_output import check_writable
from spec_sdk.settings import Settings
from spec_sdk.svg_plot import can_plot
from spec_sdk.tables import number, percent, print_table
from spec_sdk.tasks.drafters_estimate import estimate_drafters

if TYPE_CHECKING:
    from spec_sdk.latency.measuring import MeasuringPlan

SCHEMA_VERSION = 1
MEASURE = "measure"
RESULT, PLOT, MEASURED = "estimate.json", "estimate.svg", "latencies.yaml"
STRATEGIES_PLOT = "strategies.svg"


@dataclass
class EstimateConfig:
    """Options of ``task=estimate``."""

    latencies: str = option(
        "h100", "a table: h100, n150, the path of one, or measure (this machine, with model.target on the backend)"
    )
    hit_rate: Any = option(0.65, "one hit rate or a list, [0.5, 0.75]", minimum=0, maximum=1)
    contexts: Any = option(
        None, "context lengths, one or a list, [4096, 32K]", means={None: "those of the table (measure: 1K to 8K)"}
    )
    devices: Any = option(
        None,
        "numbers of devices, one or a list; ALSpec on 2n devices is two groups of n",
        minimum=1,
        means={None: "all that the table knows"},
    )
    layers: int | None = option(None, "of the model", minimum=1, means={None: "the table's"})
    rounding: str = option("none", "of hits to layers", choices={"none": "", "paper": "whole layers, rounded down"})
    strategies: bool = option(
        False,
        "also other ways to use the devices: data and sequence parallel, attention sink, ALSpec's three scenarios",
    )
    drafters: str | None = option(
        None,
        "a directory of task=bench, or a report kept of it: what its drafters would give an 8B target on a GPU",
        means={None: "speculation on attention is estimated"},
    )
    speculation_size: int = option(128, "measure: tokens from each end that a prediction reads (S)", minimum=1)
    repeats: int = option(9, "measure: steps of each kind per context", minimum=1)


class EstimateLatency(Task):
    """Estimates tokens per second with tensor parallelism and with ALSpec from a table of latencies."""

    name = "estimate"
    Config = EstimateConfig
    config: EstimateConfig
    without = ("compare", "constraint", "error_bounds", "prompt", "prompt_file", "audio")

    def run(self, app: Settings) -> int:
        """Tables go to stdout, estimate.json and estimate.svg (and a measured table) into the run's directory."""
        question = self._question()
        check_writable(app.output_dir)
        if self.config.drafters is not None:
            estimate_drafters(self.config.drafters, app.output_dir)
            return 0
        if self.config.latencies == MEASURE:
            text = measured_table(app, question.contexts, self.config.speculation_size, self.config.repeats)
            table = parse_table(text, "measured", MEASURED)
        else:
            text, table = None, load_table(self.config.latencies)
        estimates = estimate(table, question)
        comparisons = compare(table, question) if self.config.strategies else None
        _print(table, question, estimates)
        if comparisons is not None:
            _print_strategies(comparisons)
        app.output_dir.mkdir(parents=True, exist_ok=True)
        if text is not None:
            write_atomically(app.output_dir / MEASURED, text)
        write_json(app.output_dir / RESULT, result(table, question, estimates, comparisons))
        if can_plot():
            write_atomically(app.output_dir / PLOT, plot_svg(estimates, table.title))
            if comparisons:
                write_atomically(app.output_dir / STRATEGIES_PLOT, strategies_svg(comparisons, table.title))
        else:
            print("no plot: matplotlib is not installed (pip install 'spec-sdk[benchmarks]')", file=sys.stderr)
        print(f"results in {app.output_dir}", file=sys.stderr)
        if text is not None:
            print(f"estimate again from it: task.latencies={app.output_dir / MEASURED}", file=sys.stderr)
        return 0

    def _question(self) -> Question:
        config = self.config
        rates = [float(value) for value in _listed(config.hit_rate, "task.hit_rate") or []]
        if not rates:
            raise UserError("task.hit_rate: name at least one")
        contexts = _listed(config.contexts, "task.contexts")
        devices = _listed(config.devices, "task.devices")
        for value in devices or []:
            if not isinstance(value, int):
                raise UserError(f"task.devices: {value!r} is not a whole number")
        return Question(
            hit_rates=rates,
            contexts=contexts and sorted({parse_context(value, "task.contexts") for value in contexts}),
            devices=devices and sorted(set(devices)),
            layers=config.layers,
            rounding="paper" if config.rounding == "paper" else "none",
        )


def measured_table(app: Settings, contexts: Sequence[int] | None, size: int, repeats: int) -> str:
    """Measure ``model.target`` on the run's backend; returns the table as YAML. Raises UserError."""
    from spec_sdk.latency.measuring import MeasuringPlan, as_yaml, check_plan, default_contexts, measure
    from spec_sdk.model.predictable import check_predictable
    from spec_sdk.model.torch_executor import TorchExecutor
    from spec_sdk.pipeline import loaded_models

    registry = Registry.discover()
    make_backend: Any
    make_verifier: Any
    make_backend, backend_config = registry.configure("backend", app.backend)
    make_verifier, verifier_config = registry.configure("attention_verifier", app.attention_verifier)
    verifier, backend = make_verifier(verifier_config), make_backend(backend_config)
    m, models = app.model, loaded_models(app.model, backend)
    executor = models.target.executor
    if not isinstance(executor, TorchExecutor):
        raise UserError(
            f"backend: task.latencies=measure times the stages of a pass in torch, and backend '{backend.name}' "
            "computes elsewhere; use another"
        )
    check_predictable(executor.config, executor.layers, range(executor.layers), "attention_sink")
    longest = executor.config.max_context
    plan: MeasuringPlan = MeasuringPlan(contexts or default_contexts(longest), size, repeats)
    check_plan(plan, longest)
    cache = "" if m.kv_cache == "auto" else f", KV cache {m.kv_cache}"
    samples = measure(executor, verifier, plan, backend.synchronize, lambda line: print(line, file=sys.stderr))
    return as_yaml(
        samples,
        title=f"{models.target.name}, {m.dtype}, weights {m.weights}{cache}, on {backend.describe()}",
        source=f"task=estimate, backend {backend.name}, medians of {repeats} steps",
        layers=executor.layers,
        size=size,
    )


def result(
    table: LatencyTable,
    question: Question,
    estimates: Sequence[Estimate],
    comparisons: Sequence[Comparison] | None = None,
) -> dict[str, Any]:
    """All of estimate.json; ``strategies`` stands in it where they were asked for."""
    compared = {} if comparisons is None else {"strategies": [each.as_json() for each in comparisons]}
    return {
        "schema_version": SCHEMA_VERSION,
        "latencies": {"name": table.name, "title": table.title, "source": table.source},
        "layers": question.layers or table.layers,
        "rounding": question.rounding,
        "speculation_size": table.speculation_size,
        "notes": [*table.notes, *table.assumptions()],
        "estimates": [row.as_json() for row in estimates],
        **compared,
    }


def _print(table: LatencyTable, question: Question, estimates: Sequence[Estimate]) -> None:
    print(f"{table.title} ({table.source})")
    for devices, group in groupby(estimates, key=lambda row: row.devices):
        rows = list(group)
        lines = _speculative(devices, rows, question) if rows[0].step else _plain(devices, rows)
        contexts = [show_context(row.context) for row in rows]
        print_table(_title(devices, rows), ["context", *contexts], lines, file=sys.stdout)
    for note in (*table.notes, *table.assumptions()):
        print(f"note: {note}", file=sys.stderr)


def _print_strategies(comparisons: Sequence[Comparison]) -> None:
    """A token's milliseconds by every way, and where ALSpec and another way cross."""
    for comparison in comparisons:
        rows = []
        for strategy in comparison.strategies:
            times = [strategy.token_us(context) for context in comparison.contexts]
            rows.append([strategy.label, *(number(us and us / 1000) for us in times), str(strategy.streams)])
        contexts = [show_context(context) for context in comparison.contexts]
        print_table(f"{comparison.devices} devices: ms per token", ["", *contexts, "requests"], rows, file=sys.stdout)
        scenarios = {
            f"{strategy.groups} groups of {strategy.degree}": [*map(strategy.scenario, comparison.contexts)]
            for strategy in comparison.strategies
            if strategy.scenario is not None
        }
        for groups, found in scenarios.items():
            said = ", ".join(f"{show_context(c)}: {n or '–'}" for c, n in zip(comparison.contexts, found, strict=True))
            print(f"scenario with {groups}: {said}")
        for each in comparison.crossovers:
            print(f"from a context of {each.context} on {each.faster} is faster than {each.slower}")
    if comparisons:
        print("note: sequence parallel: exchanging partial attentions counts as the table's link", file=sys.stderr)
    else:
        print("the table has times of one group only, for every number of devices that was asked for")


def _title(devices: int, rows: Sequence[Estimate]) -> str:
    if rows[0].step is None:
        return counted(devices, "device")
    return f"{devices} devices: ALSpec on two groups of {devices // 2}"


def _plain(devices: int, rows: Sequence[Estimate]) -> list[list[str]]:
    return [[f"TP {devices} tok/s", *(number(row.all_speed, 1) for row in rows)]]


def _speculative(devices: int, rows: Sequence[Estimate], question: Question) -> list[list[str]]:
    """The columns of the paper's Table 3, and what more is known, a line each."""
    half = devices // 2
    steps = [row.step for row in rows if row.step is not None]
    cells: dict[str, list[str]] = {"attention us/layer": [_us(step.flash_decode) for step in steps]}
    if any(step.sender != step.flash_decode or step.receiver for step in steps):
        cells["SFD_S us"] = [_us(step.sender) for step in steps]
        cells["SFD_R us"] = [_us(step.receiver) for step in steps]
    cells["rest us/layer"] = [_us(step.per_layer) for step in steps]
    if any(row.group_measured for row in rows):
        cells[f"TP {half} measured"] = [number(row.group_measured, 1) for row in rows]
    cells[f"TP {half} tok/s"] = [number(row.group_speed, 1) for row in rows]
    if any(row.all_speed for row in rows):
        cells[f"TP {devices} tok/s"] = [number(row.all_speed, 1) for row in rows]
        cells[f"TP {devices} scaling"] = [_gain(row.all_speed, row.group_speed) for row in rows]
    for rate in question.hit_rates:
        label = f"ALSpec @{100 * rate:g}%"
        cells[f"{label} tok/s"] = [number(row.alspec[rate], 1) for row in rows]
        cells[f"{label} scaling"] = [_gain(row.alspec[rate], row.group_speed) for row in rows]
    bound = "from" if question.rounding == "paper" else "above"
    cells[f"beats TP {half} {bound}"] = [_threshold(row.break_even_group) for row in rows]
    if any(row.all_speed for row in rows):
        cells[f"beats TP {devices} {bound}"] = [_threshold(row.break_even_all) for row in rows]
    return [[label, *values] for label, values in cells.items()]


def _us(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _gain(speed: float | None, base: float | None) -> str:
    return "–" if speed is None or not base else percent(speed / base - 1)


def _threshold(rate: float | None) -> str:
    if rate is None:
        return "–"
    if math.isinf(rate):
        return "always" if rate < 0 else "never"
    return percent(rate)


def _listed(value: Any, option: str) -> list[Any] | None:
    """One value or a list of them as a list; None for null. Raises UserError for a group of options."""
    if value is None:
        return None
    if isinstance(value, dict):
        raise UserError(f"{option}: {value!r} is not a value or a list of them")
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise UserError(f"{option}: the list is empty")
    return values
