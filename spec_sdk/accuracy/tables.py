"""Tables of a run: ours for people at a terminal, and those of "Optimized speculative sampling" in its layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spec_sdk.accuracy.figures import OverSeeds, SamplerFigures, figures_of
from spec_sdk.accuracy.metrics import Metric
from spec_sdk.accuracy.records import AccuracyRun, SamplerChoice
from spec_sdk.bench.records import VANILLA
from spec_sdk.tables import number, percent

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> str:
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return f"### {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def own_tables(run: AccuracyRun) -> list[Table]:
    """A row for every sampler: how near answers come to their references, and what sampling takes."""
    found = figures_of(run)
    seeds = run.bench.head.get("rounds", int)
    over = f", mean ± deviation over {seeds} seeds" if seeds > 1 else ""
    tables = [
        Table(
            f"accuracy{over}",
            ["", *(f"{m.label} {arrow(m)}" for m in run.metrics)],
            [[each.choice.candidate, *(spread(each.scores.get(m.name)) for m in run.metrics)] for each in found],
        )
    ]
    others = [each for each in found if not _is_baseline(each.choice)]
    if others:
        tables.append(
            Table(
                f"change from the baseline under the same seeds{over}",
                ["", "baseline", *(m.label for m in run.metrics)],
                [
                    [
                        each.choice.candidate,
                        each.choice.baseline,
                        *(spread(each.changes.get(m.name), signed=True) for m in run.metrics),
                    ]
                    for each in others
                ],
            )
        )
    drafting = [each for each in found if each.choice.sampler != VANILLA]
    tables.append(
        Table(
            "sampling: ms per step, time saved beside the baseline, accepted drafts, answers that are the baseline's",
            ["", "ms", "saved", "accepted", "MAT", "equal"],
            [
                [
                    each.choice.candidate,
                    NOTHING if each.step_s is None else number(1000 * each.step_s[0], 3),
                    NOTHING if _is_baseline(each.choice) else share(each.sampling_saved),
                    share(each.acceptance_rate),
                    number(None if each.mean_accepted_tokens is None else each.mean_accepted_tokens.mean),
                    NOTHING if _is_baseline(each.choice) else f"{each.equal} of {each.compared}",
                ]
                for each in drafting
            ],
        )
    )
    return tables


def paper_tables(run: AccuracyRun) -> list[Table]:
    """The layouts of the paper's tables 1, 5 and 6; of 2 and 7 with several scales, of 8 with several depths.

    Tables 1, 5 and 6 have one column for a sampler: of several scales the first one's.
    """
    found = [each for each in figures_of(run) if each.choice.sampler != VANILLA]
    if not found:
        return []
    tables = []
    depths = list(dict.fromkeys(each.choice.depth for each in found))
    for depth in depths:
        at = "" if depth is None else f", γ = {depth}"
        here = [each for each in found if each.choice.depth == depth]
        columns = _one_of_each(here)
        tables += [_table_1(run, columns, at), _table_5(run, columns, at), _table_6(run, columns, at)]
        tables += _table_2(run, here, at)
    if len(depths) > 1:
        tables.append(_table_8(found, depths))
    return tables


def _table_1(run: AccuracyRun, columns: Sequence[SamplerFigures], at: str) -> Table:
    others = [each for each in columns if not _is_baseline(each.choice)]
    names = [_label(each.choice) for each in columns]
    rows = [
        [*_about(run), f"{m.label} {arrow(m)}", *(spread(each.scores.get(m.name)) for each in columns)]
        + [share(each.sampling_saved) for each in others]
        for m in run.metrics
    ]
    saved = [f"Δ% sampling time, {_label(each.choice)}" for each in others]
    header = ["Dataset", "Target", "Draft", "Metric", *names, *saved]
    return Table(f"Accuracy and time in sampling (layout of the paper's Table 1){at}", header, rows)


def _table_2(run: AccuracyRun, here: Sequence[SamplerFigures], at: str) -> list[Table]:
    scaled = [each for each in here if each.choice.alpha is not None and each.choice.beta is not None]
    if len(scaled) < 2:
        return []
    models = " / ".join(_about(run)[1:])
    rows = [
        [
            models,
            "Baseline" if _is_baseline(each.choice) else f"{each.choice.alpha:g} {each.choice.beta:g}",
            *(spread(each.scores.get(m.name)) for m in run.metrics),
            NOTHING if _is_baseline(each.choice) else share(each.sampling_saved),
        ]
        for each in [
            *(each for each in here if _is_baseline(each.choice)),
            *sorted(scaled, key=lambda each: each.choice.beta or 0.0),
        ]
    ]
    header = ["Target / draft", "Scale (α β)", *(f"{m.label} {arrow(m)}" for m in run.metrics), "Δ% sampling time"]
    return [Table(f"Scales of the sigmoid (layout of the paper's Tables 2 and 7){at}", header, rows)]


def _table_5(run: AccuracyRun, columns: Sequence[SamplerFigures], at: str) -> Table:
    others = [each for each in columns if not _is_baseline(each.choice)]
    header = ["Dataset", "Target", "Draft", *(f"Improvement, {_label(each.choice)}" for each in others)]
    row = [*_about(run), *(share(each.decode_saved) for each in others)]
    return Table(f"Wall-clock time of decoding (layout of the paper's Table 5){at}", header, [row])


def _table_6(run: AccuracyRun, columns: Sequence[SamplerFigures], at: str) -> Table:
    others = [each for each in columns if not _is_baseline(each.choice)]
    base = next((each.step_s for each in columns if _is_baseline(each.choice)), None)
    row = [
        *_about(run),
        *(_step(each) for each in columns),
        *(percent(None if base is None or each.step_s is None else 1 - each.step_s[0] / base[0]) for each in others),
    ]
    names = [f"{_label(each.choice)}, ms ± std" for each in columns]
    header = ["Dataset", "Target", "Draft", *names, *(f"Δ% per step, {_label(each.choice)}" for each in others)]
    return Table(f"Time in sampling per step (layout of the paper's Table 6){at}", header, [row])


def _table_8(found: Sequence[SamplerFigures], depths: Sequence[int | None]) -> Table:
    methods: dict[str, dict[int | None, SamplerFigures]] = {}
    for each in found:
        methods.setdefault(_label(each.choice), {})[each.choice.depth] = each
    rows = [
        [
            method,
            *(share(at[depth].acceptance_rate) if depth in at else NOTHING for depth in depths),
            *(_step(at[depth]) if depth in at else NOTHING for depth in depths),
        ]
        for method, at in methods.items()
    ]
    header = ["Method", *(f"accepted, γ = {d}" for d in depths), *(f"ms per step, γ = {d}" for d in depths)]
    return Table("Acceptance and time in sampling per step (layout of the paper's Table 8)", header, rows)


def spread(value: OverSeeds | None, digits: int = 3, signed: bool = False) -> str:
    """``0.213 ± 0.004``."""
    if value is None:
        return NOTHING
    mean = f"{value.mean:{'+' if signed else ''}.{digits}f}"
    return mean if value.deviation is None else f"{mean} ± {value.deviation:.{digits}f}"


def share(value: OverSeeds | None) -> str:
    """``41.2 % ± 0.6``."""
    if value is None:
        return NOTHING
    return percent(value.mean) + ("" if value.deviation is None else f" ± {100 * value.deviation:.1f}")


def arrow(metric: Metric) -> str:
    """Which way is better, as papers have it."""
    return "(↑)" if metric.higher_is_better else "(↓)"


def _step(each: SamplerFigures) -> str:
    if each.step_s is None:
        return NOTHING
    mean, deviation = each.step_s
    return f"{1000 * mean:.3f} ± {1000 * deviation:.3f}"


def _about(run: AccuracyRun) -> list[str]:
    """Data, target and draft model, as the paper's rows begin."""
    head = run.bench.head
    draft = next((c.draft for c in run.bench.candidates.values() if c.draft), None)
    return [str(head.get("prompts", dict)["file"]), head.get("target", str), draft or NOTHING]


def _is_baseline(choice: SamplerChoice) -> bool:
    return choice.candidate == choice.baseline


def _label(choice: SamplerChoice) -> str:
    """What records call it, without the depth, which tables say otherwise."""
    return choice.candidate if choice.depth is None else choice.candidate.removesuffix(f" γ={choice.depth}")


def _one_of_each(here: Iterable[SamplerFigures]) -> list[SamplerFigures]:
    """The first of each sampler."""
    found: dict[str, SamplerFigures] = {}
    for each in here:
        found.setdefault(each.choice.sampler, each)
    return list(found.values())
