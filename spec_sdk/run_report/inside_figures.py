"""Figures of where time goes and what is accepted: stages, depths, passes by their nodes, attention hits by layer."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.bench.records import AnswerRecord
from spec_sdk.bench.totals import summed_depths
from spec_sdk.metrics import STAGES, ratio
from spec_sdk.run_report import charts
from spec_sdk.run_report.charts import SHOWN_STAGES
from spec_sdk.run_report.figure import NONE, Figure, Table, basis, legend_of, legend_of_stages
from spec_sdk.run_report.groups import Group, Series
from spec_sdk.run_report.speed import total
from spec_sdk.tables import number, percent
from spec_sdk.what_ran import in_words


def stage_times(group: Group, temperature: float) -> list[Figure]:
    """Milliseconds of each stage by new token."""
    bars, rows, shown = [], [], []
    for series in group.series:
        answers = series.answers(temperature, 1)
        stages = stages_per_token(answers)
        if stages is None:
            continue
        shown.append(series)
        whole = sum(stages.values())
        bars.append((series.label, stages, f"{whole:.1f} ms"))
        share = ratio(stages["verify"], whole)
        rows.append(
            [
                series.label,
                *(number(stages[stage]) for stage in SHOWN_STAGES),
                number(whole),
                percent(share),
                str(len(answers)),
            ]
        )
    if not bars:
        return []
    title = "Where the time goes"
    used = [stage for stage in SHOWN_STAGES if any(stages[stage] > 0 for _, stages, _ in bars)]
    about = (
        "Milliseconds for every new token, answers one at a time. Other: tokenizing, and all that is in no stage. "
        "Programs that do not tell their stages are left out."
    )
    return [
        Figure(
            title,
            about,
            basis(group, shown, against=False),
            Table(
                ["candidate", *(f"{stage} ms" for stage in SHOWN_STAGES), "all ms", "verify's share", "answers"], rows
            ),
            charts.stacked(title, "; ".join(f"{label} {told} a token" for label, _, told in bars), bars, "ms"),
            legend_of_stages(used),
        )
    ]


def stages_per_token(answers: Sequence[AnswerRecord]) -> dict[str, float] | None:
    """Milliseconds by new token of each of ``SHOWN_STAGES``; None if they are not known."""
    tokens = sum(answer.new_tokens for answer in answers)
    seconds = {stage: total((answer.stage_s or {}).get(stage) for answer in answers) for stage in STAGES}
    prefill = total(answer.prefill_s for answer in answers)
    if not tokens or prefill is None or None in seconds.values():
        return None
    known = {"prefill": prefill, **{stage: value for stage, value in seconds.items() if value is not None}}
    # clocks of stages and of the whole are read apart
    known["other"] = max(0.0, sum(answer.seconds for answer in answers) - sum(known.values()))
    return {stage: 1000 * value / tokens for stage, value in known.items()}


def acceptance_by_depth(group: Group, temperature: float) -> list[Figure]:
    """What share of cycles that drafted so deep had as much accepted."""
    curves, rows, shown = [], [], []
    for i, series in enumerate(group.series):
        depths = summed_depths(series.answers(temperature, 1))
        if not depths:
            continue
        shown.append(series)
        points = []
        for depth, (drafted, accepted) in enumerate(depths, start=1):
            if drafted:
                tip = f"{series.label}, depth {depth}: {accepted} of {drafted} cycles, {percent(accepted / drafted)}"
                points.append(charts.Point(depth, 100 * accepted / drafted, tip))
                rows.append([series.label, str(depth), str(drafted), str(accepted), percent(accepted / drafted)])
        curves.append(charts.Curve(series.label, i, points))
    if not curves:
        return []
    title = "Acceptance by depth"
    first = "; ".join(f"{curve.label} {curve.points[0].y:.0f} % at depth 1" for curve in curves)
    return [
        Figure(
            title,
            "Of the cycles that drafted so deep or deeper, those that had so many drafted tokens accepted or more.",
            basis(group, shown, against=False),
            Table(["candidate", "depth", "cycles that drafted it", "accepted it", "share"], rows),
            charts.lines(title, first, curves, "depth", "accepted, %", most_y=100),
            legend_of([(curve.series, curve.label) for curve in curves]),
        )
    ]


def pass_costs(group: Group, temperature: float) -> list[Figure]:
    """What a verification cost by the nodes of its tree."""
    curves, rows, shown = [], [], []
    for i, series in enumerate(group.series):
        points = []
        for low, high, cycles, seconds, nodes in pass_buckets(series.answers(temperature, 1)):
            name = str(low) if low == high else f"{low}–{high}"
            each = 1000 * seconds / cycles
            points.append(
                charts.Point(nodes / cycles, each, f"{series.label}, {name} nodes: {each:.2f} ms, {cycles} cycles")
            )
            rows.append([series.label, name, number(nodes / cycles, 1), str(cycles), number(each)])
        if points:
            shown.append(series)
            curves.append(charts.Curve(series.label, i, points))
    if not any(len(curve.points) > 1 for curve in curves):
        return []
    title = "What a pass costs"
    about = (
        "Mean milliseconds of verifying a tree, by its nodes, as they came up in the answers: contexts differ. A "
        "policy goes by curves that are measured apart (task=cost_curve)."
    )
    dearest = max((point for curve in curves for point in curve.points), key=lambda point: point.y)
    return [
        Figure(
            title,
            about,
            basis(group, shown, against=False),
            Table(["candidate", "nodes", "mean nodes", "cycles", "verify ms"], rows),
            charts.lines(title, f"The most is {dearest.tip}", curves, "nodes of the tree", "ms", doubling=True),
            legend_of([(curve.series, curve.label) for curve in curves]),
        )
    ]


def pass_buckets(answers: Sequence[AnswerRecord]) -> list[tuple[int, int, int, float, int]]:
    """(least nodes, most nodes, cycles, seconds, nodes of all cycles) of 1, 2, 3–4, 5–8 … nodes, those that came up."""
    buckets: dict[int, tuple[int, float, int]] = {}
    for answer in answers:
        for nodes, (cycles, seconds) in (answer.passes or {}).items():
            top = 1 << max(nodes - 1, 0).bit_length()
            before = buckets.get(top, (0, 0.0, 0))
            buckets[top] = (before[0] + cycles, before[1] + seconds, before[2] + nodes * cycles)
    return [
        (top // 2 + 1 if top > 1 else 1, top, cycles, seconds, nodes)
        for top, (cycles, seconds, nodes) in sorted(buckets.items())
        if cycles
    ]


def hit_rates(group: Group, temperature: float) -> list[Figure]:
    """A map of hit rates, layer by λ, for every predictor and pipeline that speculates on attention."""
    maps: dict[str, list[Series]] = {}
    for series in group.series:
        if any(answer.attention is not None for answer in series.answers(temperature)):
            predictor = (series.candidate.plugins or {}).get("predictor")
            told = (
                f"{series.candidate.pipeline or series.candidate.name}, {in_words(predictor)}"
                if predictor
                else series.label
            )
            maps.setdefault(told, []).append(series)
    return [_hit_map(group, temperature, told, found) for told, found in maps.items()]


def _hit_map(group: Group, temperature: float, told: str, found: Sequence[Series]) -> Figure:
    by_threshold: dict[float | None, list[tuple[int, int]]] = {}
    for series in found:
        for answer in series.answers(temperature):
            if answer.attention is not None:
                known = by_threshold.get(answer.attention.threshold, [])
                by_threshold[answer.attention.threshold] = _added(known, answer.attention.hits)
    ranked = sorted(by_threshold.items(), key=lambda item: (item[0] is None, item[0] or 0.0))
    rates = [(_lambda(threshold), [ratio(hit, of) for hit, of in layers]) for threshold, layers in ranked]
    whole = [
        (name, ratio(sum(hit for hit, _ in layers), sum(of for _, of in layers)))
        for (name, _), (_, layers) in zip(rates, ranked, strict=True)
    ]
    layers = max(len(values) for _, values in rates)
    rows = [["all", *(percent(rate) for _, rate in whole)]]
    rows += [[str(i), *(percent(values[i]) if i < len(values) else NONE for _, values in rates)] for i in range(layers)]
    title = f"Attention hit rate by layer and λ: {told}"
    about = "Of a layer's predictions, the share that was accepted. Darker is more; dotted cells had no prediction."
    said = "; ".join(f"λ {name}: {percent(rate)}" for name, rate in whole)
    return Figure(
        title,
        about,
        basis(group, found, against=False),
        Table(["layer", *(f"λ {name}" for name, _ in rates)], rows),
        charts.shades(title, said, rates, "λ", "layer"),
    )


def _added(known: Sequence[tuple[int, int]], more: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    size = max(len(known), len(more))
    a, b = ([*pairs, *[(0, 0)] * (size - len(pairs))] for pairs in (known, more))
    return [(x[0] + y[0], x[1] + y[1]) for x, y in zip(a, b, strict=True)]


def _lambda(threshold: float | None) -> str:
    return "own" if threshold is None else f"{threshold:g}"
