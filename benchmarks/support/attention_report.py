"""Tables, aims and the plot of the tree attention benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import plots
from spec_sdk.bench.aims import Aim, aim

Case = dict[str, Any]
LEAST_NOISE = 0.02
"""A ratio this near to 1 is never called slower; where the same call measured twice differs by more, that counts."""
PAPER = {"heads": 10, "kv_heads": 10, "head_dim": 64}


def seconds(case: Case, rival: str, beside: str = "ours") -> tuple[float, float] | None:
    """Times of ``rival`` and ``beside``, both of the device alone where both are known; None if one did not run."""
    try:
        first, second = case["rivals"][rival], case["rivals"][beside]
    except KeyError:
        return None
    by = "device_s" if first.get("device_s") and second.get("device_s") else "call_s"
    return first[by], second[by]


def ratio(case: Case, rival: str, beside: str = "ours") -> float | None:
    """How many times as long as ours the rival takes: over 1, ours is faster."""
    times = seconds(case, rival, beside)
    return None if times is None else times[0] / times[1]


def growth(sizes: Sequence[float], bytes_: Sequence[float]) -> float:
    """Exponent of growth: the least-squares slope of log memory over log size."""
    x, y = [math.log(v) for v in sizes], [math.log(max(v, 1.0)) for v in bytes_]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    return sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / sum((a - x_mean) ** 2 for a in x)


def time_unit(value: float) -> str:
    return f"{value * 1e6:.1f} us" if value < 1e-3 else f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def memory_unit(value: float) -> str:
    if value < 10 * 1024:
        return f"{value:.0f} B"
    return f"{value / 1024:.0f} KiB" if value < 2**20 else f"{value / 2**20:.1f} MiB"


COLUMNS = {"ratio": 7, "rival": -24, "time": 10, "peak memory": 11, "mask": 10, "shape": -1}


def case_rows(case: Case) -> list[list[str]]:
    """The cells of COLUMNS for every rival that ran."""
    shape = "B{batch} H{heads} G{kv_heads} D{head_dim} N{nodes} P{prefix} {dtype} {tree}".format(**case)
    found = []
    for name, entry in case["rivals"].items():
        times = seconds(case, name)
        if times is None or name.startswith("sdpa "):
            continue
        sizes = [memory_unit(entry[key]) if key in entry else "" for key in ("peak_bytes", "mask_bytes")]
        found.append([f"{times[0] / times[1]:.2f}", name, time_unit(times[0]), *sizes, shape])
    return found


def left_out_lines(case: Case) -> list[str]:
    return [f"      -  {name}: left out ({reason})" for name, reason in case.get("left_out", {}).items()]


MEMORY_COLUMNS = {"ratio": 7, "nodes": 6, "ours, call": 11, "its mask": 11, "explicit, call": 11, "that mask": 11}


def memory_row(row: Case) -> list[str]:
    """The cells of MEMORY_COLUMNS for one number of nodes."""
    ours, theirs = row["ours"], row["sdpa"]
    both = (theirs["call_bytes"] + theirs["mask_bytes"]) / max(1, ours["call_bytes"] + ours["mask_bytes"])
    sizes = [memory_unit(entry[key]) for entry in (ours, theirs) for key in ("call_bytes", "mask_bytes")]
    return [f"{both:.2f}", str(row["nodes"]), *sizes]


def _paper(cases: Iterable[Case], dtype: str = "bfloat16") -> list[Case]:
    """Cases of the paper's heads with ten sequences, from 256 nodes on."""
    return [
        case
        for case in cases
        if all(case[key] == value for key, value in PAPER.items())
        and (case["batch"], case["dtype"], case["tree"]) == (10, dtype, "random")
        and case["nodes"] >= 256
        and "ours" in case["rivals"]
    ]


def gpu_aims(cases: Sequence[Case], too_large: Case | None) -> list[Aim]:
    """The issue's aims for an NVIDIA GPU. A rival that did not run at a size is no proof: the aim counts as missed."""
    paper = _paper(cases)

    def against(name: str, rival: str, least: float) -> Aim:
        ratios = {case["nodes"]: ratio(case, rival) for case in paper}
        known = {nodes: value for nodes, value in ratios.items() if value is not None}
        if not known:
            return aim(name, None, "needs an NVIDIA GPU" if not paper else f"{rival} did not run")
        nodes, worst = min(known.items(), key=lambda item: item[1])
        unknown = [str(size) for size in ratios if size not in known]
        figure = f"worst {worst:.2f} at N={nodes}" + (f"; did not run at N={', '.join(unknown)}" if unknown else "")
        return aim(name, worst >= least and not unknown, figure)

    paper_shape = "at every N >= 256 of the paper's shape (B=10, bfloat16)"
    aims = [
        against(f"at least 2x faster than explicit-mask SDPA {paper_shape}", "sdpa", 2.0),
        against(f"faster than FlexAttention {paper_shape}", "flex", 1.0),
        against(f"within 1.5x of causal FlashAttention {paper_shape}", "causal flash", 1 / 1.5),
    ]
    if too_large is None:
        aims.append(aim("a size at which the full mask does not fit and the intervals do", None, "needs an NVIDIA GPU"))
    else:
        shown = too_large["full_mask"] != "fits" and too_large["intervals"] == "ran"
        figure = f"B={too_large['batch']} N={too_large['nodes']}: {memory_unit(too_large['full_mask_bytes'])} against "
        aims.append(
            aim(
                "a size at which the full mask does not fit and the intervals do",
                shown,
                f"{figure}{memory_unit(too_large['mask_bytes'])}; dense: {too_large['full_mask']}; "
                f"intervals: {too_large['intervals']}",
            )
        )
    return aims


def mask_aim(cases: Sequence[Case]) -> Aim:
    wrong = [
        case for case in cases
        if "ours" in case["rivals"]
        and case["rivals"]["ours"]["mask_bytes"] != 4 * case["nodes"] * case.get("masks", case["batch"])
    ]  # fmt: skip
    return aim("4 bytes of mask per node and sequence", not wrong if cases else None, f"{len(cases)} cases")


def cpu_aims(cases: Sequence[Case], memory: Sequence[Case]) -> list[Aim]:
    """Small trees are no slower than SDPA within what the same call measured twice differs by; memory grows with N."""
    aims = []
    small = [case for case in cases if case["nodes"] <= 64]
    name = "CPU: not slower than explicit-mask SDPA at N <= 64"
    if small:
        ratios = [(ratio(case, "sdpa") or 0.0, case) for case in small]
        twice = [abs((ratio(case, "sdpa again", "sdpa") or 1.0) - 1) for case in small]
        slower = [value < 1 - max(LEAST_NOISE, noise) for (value, _), noise in zip(ratios, twice, strict=True)]
        worst, case = min(ratios, key=lambda item: item[0])
        below = sum(value < 1 for value, _ in ratios)
        figure = (
            f"worst {worst:.3f} (N={case['nodes']} P={case['prefix']} H={case['heads']} {case['dtype']}), "
            f"median {sorted(value for value, _ in ratios)[len(ratios) // 2]:.2f}, {below} of {len(ratios)} under 1; "
            f"the same call twice differs by {sorted(twice)[len(twice) // 2]:.3f} (median)"
        )
        aims.append(aim(name, not any(slower), figure))
    else:
        aims.append(aim(name, None, "left out"))
    name = "CPU: memory grows with N, not N^2"
    if len(memory) > 1:
        sizes = [row["nodes"] for row in memory]
        ours, theirs = (
            growth(sizes, [row[rival]["call_bytes"] + row[rival]["mask_bytes"] for row in memory])
            for rival in ("ours", "sdpa")
        )
        figure = f"N^{ours:.2f}, explicit mask N^{theirs:.2f}, over N={sizes[0]}..{sizes[-1]}"
        aims.append(aim(name, ours <= 1.2, figure))
    else:
        aims.append(aim(name, None, "left out"))
    return aims


def plot(report: Case, path: Path) -> None:
    """Time and memory over N."""
    on_gpu = report["device"] == "cuda"
    dtype = "bfloat16" if on_gpu else "float32"
    batches = [10, 1] if on_gpu else [1]
    if (figure := plots.new_figure(5.2 * (len(batches) + 1), 4.2)) is None:
        return
    axes = figure.subplots(1, len(batches) + 1)
    for batch, axis in zip(batches, axes, strict=False):
        cases = [
            case for case in report["cases"]
            if (case["batch"], case["dtype"], case["tree"], case["prefix"]) == (batch, dtype, "random", 10)
            and all(case[key] == value for key, value in PAPER.items())
        ]  # fmt: skip
        for name in ("ours", "full mask, our kernel", "sdpa", "flex", "causal flash"):
            points = [(case["nodes"], times[0]) for case in cases if (times := seconds(case, name)) is not None]
            if points:
                axis.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
        axis.set(yscale="log", xlabel="tree nodes N", ylabel="seconds", title=f"time, B={batch}, {dtype}")
        axis.legend()
    if on_gpu:
        rows = [case for case in report["cases"] if case in _paper(report["cases"])]
        curves = {
            name: [(case["nodes"], entry["peak_bytes"] + entry["mask_bytes"]) for case in rows
                   if (entry := case["rivals"].get(name))]
            for name in ("ours", "full mask, our kernel", "sdpa", "flex")
        }  # fmt: skip
    else:
        curves = {
            name: [(row["nodes"], row[name]["call_bytes"] + row[name]["mask_bytes"]) for row in report["memory"]]
            for name in ("ours", "sdpa")
        }
    for name, points in curves.items():
        if points:
            axes[-1].plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
    axes[-1].set(yscale="log", xlabel="tree nodes N", ylabel="bytes", title="peak memory of a call, and mask")
    axes[-1].legend()
    for axis in axes:
        axis.set_xscale("log", base=2)
    figure.suptitle(f"Tree attention, H=10, D=64, 10 prompt tokens: {report['machine']}")
    plots.save(figure, path)
