"""What is computed from timed answers: tokens per second with and without prefill, their spread, ratios, aims."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.programs import FOUR_BIT, LLAMA, OUR_PIPELINES, TRANSFORMERS, Program, our_name
from spec_sdk.bench.peers.worker import Timing

LLAMA_F16, LLAMA_Q4 = f"{LLAMA} F16", f"{LLAMA} {FOUR_BIT}"
REFERENCES = (TRANSFORMERS, LLAMA_F16, f"{LLAMA} F32", LLAMA_Q4)
VANILLA, OURS = our_name(OUR_PIPELINES[0]), tuple(our_name(pipeline) for pipeline in OUR_PIPELINES)

Rounds = Sequence[Sequence[Timing]]
"""A program's answers: per round one for each prompt, in the prompts' order."""


@dataclass(frozen=True)
class Aim:
    """``of`` (the best of them) should be at least ``least`` times ``over``, tokens per second, prefill included."""

    of: tuple[str, ...]
    over: str
    least: float
    decode: bool = False


AIMS = (
    Aim((VANILLA,), LLAMA_F16, 1.0),
    Aim((VANILLA,), LLAMA_F16, 0.85, decode=True),
    Aim((f"{VANILLA} {FOUR_BIT}",), LLAMA_Q4, 1.3),
    Aim(OURS, LLAMA_F16, 1.3),
    Aim(OURS, TRANSFORMERS, 2.7),
)
ADAPTIVE_LEAST = 0.97
"""What a pipeline with ``policy=adaptive`` should reach at least, as a ratio to our plain decoding."""


def report_of(
    programs: Sequence[Program], answers: Mapping[str, Rounds], tasks: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The figures of every program that answered, and how far the aims are reached. ``tasks``: the prompts' kinds."""
    figures = {
        program.name: {"column": program.column, **_figures(answers[program.name], tasks)}
        for program in programs
        if program.name in answers
    }
    for program in programs:
        if program.name not in figures:
            continue
        mine = figures[program.name]
        mine["ratios"] = {
            name: {
                **{key: mine[key] / figures[name][key] for key in ("tokens_per_s", "decode_tokens_per_s")},
                "answers_equal": _equal(answers[program.name][0], answers[name][0]),
            }
            for name in dict.fromkeys((program.plain, *REFERENCES))
            if name in figures
        }
        if program.plain in figures:
            mine["answers_equal_to_plain"] = mine["ratios"][program.plain]["answers_equal"]
    return figures, _aims(programs, figures)


def _figures(rounds: Rounds, tasks: Sequence[str]) -> dict[str, Any]:
    every = [timing for answers in rounds for timing in answers]
    by_prompt = [statistics.median(_speed([t]) for t in timings) for timings in zip(*rounds, strict=True)]
    by_round = [_speed(answers) for answers in rounds]
    return {
        "new_tokens": sum(len(t.tokens) for t in every),
        "seconds": sum(t.total_s for t in every),
        "tokens_per_s": _speed(every),
        "rounds_tokens_per_s": by_round,
        "prompt_tokens_per_s": {"median": statistics.median(by_prompt), "quartiles": _quartiles(by_prompt)},
        "first_token_s": {
            "median": statistics.median(t.first_s for t in every),
            "quartiles": _quartiles([t.first_s for t in every]),
            "sum": sum(t.first_s for t in every),
        },
        "decode_tokens_per_s": sum(t.decoded for t in every) / sum(t.decode_s for t in every),
        "task_tokens_per_s": {
            task: _speed([answers[i] for answers in rounds for i, name in enumerate(tasks) if name == task])
            for task in dict.fromkeys(tasks)
        },
    }


def _speed(answers: Sequence[Timing]) -> float:
    """New tokens per second, prefill included."""
    return sum(len(t.tokens) for t in answers) / sum(t.total_s for t in answers)


def _equal(mine: Sequence[Timing], others: Sequence[Timing]) -> int:
    return sum(a.tokens == b.tokens for a, b in zip(mine, others, strict=True))


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def _aims(programs: Sequence[Program], figures: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    reached = []
    for aim in AIMS:
        key = "decode_tokens_per_s" if aim.decode else "tokens_per_s"
        found = {name: figures[name][key] for name in aim.of if name in figures}
        if found and aim.over in figures:
            best = max(found, key=found.__getitem__)
            ratio = found[best] / figures[aim.over][key]
            reached.append(_aim(best, aim.over, ratio, aim.least, decode=aim.decode))
    for program in programs:
        if program.adaptive and program.name in figures and program.plain in figures:
            ratio = figures[program.name]["tokens_per_s"] / figures[program.plain]["tokens_per_s"]
            reached.append(_aim(program.name, program.plain, ratio, ADAPTIVE_LEAST))
    return reached


def _aim(name: str, over: str, ratio: float, least: float, decode: bool = False) -> dict[str, Any]:
    return {
        "program": name,
        "over": over,
        "prefill": "apart" if decode else "included",
        "ratio": ratio,
        "least": least,
        "reached": ratio >= least,
    }
