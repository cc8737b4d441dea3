"""What is said of the advice: tables and sentences on stdout, and everything in advise.json."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.advice.choosing import MARGIN, Measured, Predicted
from spec_sdk.advice.costs import seconds_of
from spec_sdk.advice.cycles import Cycle
from spec_sdk.advice.probing import Answers
from spec_sdk.bench.cost_curve import CostCurve
from spec_sdk.bench.cycle_counts import depths_of
from spec_sdk.bench.machine import machine_facts
from spec_sdk.bench.records import VANILLA
from spec_sdk.counted import counted
from spec_sdk.tables import number, print_table, text_width, wrapped

if TYPE_CHECKING:
    from spec_sdk.pipeline import Pipeline

SCHEMA_VERSION = 2
FEW_PROMPTS = 4
"""Advice that rests on fewer is told to be uncertain."""
SHOWN_NODES = (8, 32)
"""Sizes of pass that the sentence about the cost curve names."""


@dataclass(frozen=True)
class Report:
    """All that was found. ``best``: the advised candidate, None for plain decoding. ``asked``: prompts it might ask."""

    vanilla: Pipeline
    curve: CostCurve
    length: int
    probed: Answers
    found: list[Predicted]
    left_out: Mapping[str, str]
    verified: list[Measured]
    best: str | None
    seconds: float
    asked: int

    @property
    def advised(self) -> Predicted:
        """The advised candidate, or the best one where plain decoding is advised."""
        return next((each for each in self.found if each.name == self.best), self.found[0])


def show(report: Report, command: str) -> None:
    """Everything for people, on stdout."""
    print_table(
        "Predicted, relative to plain decoding",
        ["pipeline", "tree", "speed-up", "tokens a cycle", "draft ms", "verify ms"],
        [
            [
                each.name,
                tree_of(each),
                number(each.speedup),
                number(each.means.tokens),
                number(1000 * each.means.draft_s),
                number(1000 * (each.means.pass_s + each.means.host_s)),
            ]
            for each in report.found
        ],
        file=sys.stdout,
    )
    for text in sentences(report):
        print(wrapped(text, text_width(sys.stdout)))
    print()
    print_table(
        "Checked: answered in turn with plain decoding",
        ["pipeline", "tree", "predicted", "measured", "off by", "tokens/s"],
        [
            [
                each.name,
                tree_of(next(found for found in report.found if found.name == each.name)),
                number(each.predicted),
                number(each.speedup),
                f"{100 * each.error:+.0f} %",
                number(each.tokens_per_second, 1),
            ]
            for each in report.verified
        ],
        file=sys.stdout,
    )
    for text in conclusion(report):
        print(wrapped(text, text_width(sys.stdout)))
    print(f"\n{command}")


def tree_of(each: Predicted) -> str:
    """A candidate's tree in words: depth × width."""
    if each.adaptive:
        return "adaptive"
    return "own policy" if each.shape is None else f"{each.shape.depth} × {each.shape.width}"


def sentences(report: Report) -> list[str]:
    """What passes cost, and what limits the advised pipeline."""
    context = min(report.curve.contexts)
    one = report.curve.at(1, context)
    wide = " and ".join(f"{report.curve.at(n, context) / one:.1f} for {n} nodes" for n in SHOWN_NODES)
    each = report.advised
    said = [
        f"A plain step takes {1000 * each.plain_step_s:.1f} ms. A wider pass costs, in passes over one node: {wide}."
    ]
    limits = each.limits
    if limits[0].kind == "acceptance" and len(limits) == 1 and each.speedup >= 1 + MARGIN:
        said.append(f"What limits {each.name}: nothing but its drafts. {_sentence(limits[0].words)}.")
        return said
    said.append(f"What limits {each.name}:")
    for limit in limits:
        gain = "" if limit.kind == "undrafted" else f"; without that the speed-up would be {limit.without:.2f}"
        said.append(f"- {limit.words}{gain}.")
    return said


def conclusion(report: Report) -> list[str]:
    """The advice in words."""
    said = []
    if report.best is None:
        best = report.verified[0] if report.verified else None
        beaten = f"; the best pipeline, {best.name}, came to {best.speedup:.2f}" if best is not None else ""
        said.append(f"Plain decoding is best here{beaten}.")
    else:
        check = next((each for each in report.verified if each.name == report.best), None)
        told = f"{report.advised.speedup:.2f} times as fast as plain decoding, as predicted"
        if check is not None:
            told = f"{check.speedup:.2f} times as fast as plain decoding; the prediction was {_off(check.error)}"
        said.append(f"Advised: {report.best}, tree {tree_of(report.advised)}: {told}.")
    said += basis(len(report.probed.cycles[VANILLA]), report.asked)
    for name, why in report.left_out.items():
        said.append(f"Left out: {name}: {why}.")
    return said


def basis(answered: int, asked: int) -> list[str]:
    """What to say of advice that rests on few prompts, ``answered`` of those that were ``asked``."""
    if answered >= FEW_PROMPTS:
        return []
    few = f"This rests on {counted(answered, 'prompt')}"
    if answered < asked:
        return [f"{few} of {asked}, for which the time sufficed: give more of it by task.seconds, or fewer candidates."]
    return [f"{few}, and others may differ much: give more by prompt_file."]


def summary_of(report: Report) -> str:
    """The summary of the YAML that is written."""
    target = f"{report.vanilla.target_name}, {report.vanilla.dtype}, {report.vanilla.backend.describe()}"
    if report.best is None:
        return f"plain decoding, which task=advise found best for {target}"
    return f"{report.best}, {tree_of(report.advised)}, which task=advise found best for {target}"


def as_json(report: Report, command: str) -> dict[str, Any]:
    """All of advise.json."""
    vanilla, plain = report.vanilla, report.probed.cycles[VANILLA]
    every = [cycle for cycles in plain.values() for cycle in cycles]
    seconds, tokens = seconds_of(every, report.curve), sum(cycle.tokens for cycle in every)
    return {
        "schema_version": SCHEMA_VERSION,
        "target": vanilla.target_name,
        "dtype": vanilla.dtype,
        "machine": dict(machine_facts(vanilla.backend.hardware)),
        "sampling": asdict(vanilla.sampling),
        "new_tokens": report.length,
        "seconds": report.seconds,
        "curve": report.curve.as_json(),
        "plain": {"prompts": len(plain), "tokens": tokens, "tokens_per_second": tokens / seconds},
        "candidates": [_candidate(each, report.probed.cycles[each.name]) for each in report.found],
        "left_out": dict(report.left_out),
        "verification": [{**asdict(each), "error": each.error} for each in report.verified],
        "advised": report.best or VANILLA,
        "command": command,
    }


def _candidate(each: Predicted, cycles: Mapping[int, list[Cycle]]) -> dict[str, Any]:
    every = [cycle for of in cycles.values() for cycle in of]
    return {
        "candidate": each.name,
        "tree": tree_of(each),
        "depth": each.shape.depth if each.shape else None,
        "width": each.shape.width if each.shape else None,
        "speedup": each.speedup,
        "prompts": len(cycles),
        "cycles": len(every),
        "depths": depths_of([(cycle.drafted, len(cycle.ranks)) for cycle in every]),
        "means": asdict(each.means),
        "limits": [asdict(limit) for limit in each.limits],
        "shapes": [
            {
                "depth": of.shape.depth,
                "width": of.shape.width,
                "speedup": of.speedup(each.plain_s),
                **asdict(of.means),
            }
            for of in each.shapes
            if of.shape is not None
        ],
    }


def _off(error: float) -> str:
    if abs(error) < 0.005:
        return "right to one per cent"
    return f"{100 * abs(error):.0f} % too {'high' if error > 0 else 'low'}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
