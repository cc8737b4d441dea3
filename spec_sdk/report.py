"""What people read on stderr: a progress line and the closing tables."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.tables import number, percent, print_facts, print_table
from spec_sdk.what_ran import in_words

REFRESH_S = 0.1


@dataclass(frozen=True)
class Column:
    """One run in a closing table."""

    name: str
    summary: Mapping[str, Any]
    guarantee: str


def closing_table(run: Column, baseline: Column | None = None) -> None:
    """The run's summary, beside that of plain decoding and their ratio if there is a baseline."""
    columns = [run] if baseline is None else [run, baseline]
    rows = [[label, *(cell(value(column.summary)) for column in columns)] for label, cell, value in ROWS]
    if (run.summary["attention"] or {}).get("hit_rate") is not None:
        blanks = [""] * (len(columns) - 1)
        rows += [[label, value, *blanks] for label, value in attention_rows(run.summary["attention"])]
    rows.append(["guarantee", *(column.guarantee for column in columns)])
    if baseline is not None:
        rows = [[*row, _ratio(row[0], run, baseline)] for row in rows]
    print_table("", ["", *(column.name for column in columns), *(["ratio"] if baseline else [])], rows)


def doubts(run: Column, baseline: Column | None = None) -> list[str]:
    """What to say of a ratio that cannot be: a pass over a tree takes no less time than one over a token, so that the
    ratio of speeds is at most that of tokens a pass. Of speculation on attention, whose passes are others, nothing.
    """
    if baseline is None or run.summary["attention"] is not None:
        return []
    speed, accepted = (_quotient(name, run, baseline) for name in COMPARED)
    if speed is None or accepted is None or speed < IMPLAUSIBLE * accepted:
        return []
    return [
        f"the ratio {number(speed)}× is more than the tokens of a pass explain ({number(accepted)}×): something slowed "
        f"{baseline.name} down; ask it more prompts, on an idle machine, or use task=bench"
    ]


def attention_rows(attention: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the attention level did, more closely: hits per layer, errors, and the bounds of ALSpec's Appendix A."""
    rows = [
        ("attention hits per layer (▁ 0 % … █ 100 %)", spark(attention["hit_rate_per_layer"])),
        (
            "attention error, mean / largest",
            f"{number(attention['mean_error'], 3)} / {number(attention['max_error'], 3)}",
        ),
    ]
    bounds = attention["error_bounds"]
    if bounds is not None:
        power = bounds["worst_case_log10"]
        rows.append(("worst-case error bound (estimate)", "0" if power is None else scientific(power)))
        rows.append(("worst case, linearised (estimate)", number(bounds["linearised"])))
        rows.append((f"{1 - bounds['delta']:.0%} error bound (estimate)", number(bounds["probabilistic"])))
    return rows


def spark(rates: Sequence[float | None]) -> str:
    """Rates as one character each, from ▁ for 0 to █ for 1; · where there is none."""
    levels = "▁▂▃▄▅▆▇█"
    return "".join("·" if rate is None else levels[round(rate * (len(levels) - 1))] for rate in rates)


def scientific(log10: float) -> str:
    """The number 10^``log10``, which may be too large for a float: plain below a thousand, else as 1.2e34."""
    if -2 < log10 < 3:
        return number(10**log10)
    power = math.floor(log10)
    return f"{10 ** (log10 - power):.1f}e{power}"


def _ratio(label: str, run: Column, baseline: Column) -> str:
    if label not in COMPARED:
        return ""
    quotient = _quotient(label, run, baseline)
    return "–" if quotient is None else number(quotient) + "×"


def _quotient(label: str, run: Column, baseline: Column) -> float | None:
    value = next(value for name, _, value in ROWS if name == label)
    ours, theirs = value(run.summary), value(baseline.summary)
    return float(ours / theirs) if ours is not None and theirs else None


def _stage(stage: str) -> Any:
    return lambda summary: summary["stage_s"][stage]


def _seconds(value: float | None) -> str:
    return number(value, 2, " s")


ROWS: Sequence[tuple[str, Any, Any]] = (
    ("tokens/s", number, lambda s: s["tokens_per_second"]),
    ("mean accepted tokens (MAT)", number, lambda s: s["mean_accepted_tokens"]),
    ("acceptance rate", percent, lambda s: s["acceptance_rate"]),
    ("time in draft", _seconds, _stage("draft")),
    ("time in verify", _seconds, _stage("verify")),
    ("time in recover", _seconds, _stage("recover")),
    ("prefill", _seconds, lambda s: s["prefill_s"]),
    ("new tokens", str, lambda s: s["new_tokens"]),
    ("attention hit rate", percent, lambda s: (s["attention"] or {}).get("hit_rate")),
)
SUMMARY_COLUMNS = ("tok/s", "MAT", "accepted", "draft s", "verify s", "recover s")


def summary_cells(summary: Mapping[str, Any] | None) -> list[str]:
    """One job's row under :data:`SUMMARY_COLUMNS`; dashes if it has no summary."""
    if summary is None:
        return ["–"] * len(SUMMARY_COLUMNS)
    return [
        number(summary["tokens_per_second"]),
        number(summary["mean_accepted_tokens"]),
        percent(summary["acceptance_rate"]),
        *(number(summary["stage_s"][stage]) for stage in ("draft", "verify", "recover")),
    ]


def print_plugins_of_jobs(jobs: Sequence[Mapping[str, Any]]) -> None:
    """What ran in the jobs of a sweep: what they have in common once, then what differs by job.

    A job is as ``summary.json`` has it; ``plugins`` is None of one that failed. Where the target rounded the rows of
    activations in some of them, that is told as well.
    """
    words = {
        f"job {number}": {kind.replace("_", " "): in_words(plugin) for kind, plugin in job["plugins"].items()}
        for number, job in enumerate(jobs)
        if job["plugins"] is not None
    }
    if any(job["rounds_rows"] for job in jobs):
        for number, job in enumerate(jobs):
            if job["rounds_rows"] is not None:
                words[f"job {number}"]["rows"] = "in 8 bits" if job["rounds_rows"] else "exact"
    kinds = dict.fromkeys(kind for plugins in words.values() for kind in plugins)
    common = {kind for kind in kinds if len({plugins.get(kind) for plugins in words.values()}) == 1}
    first = next(iter(words.values()), {})
    print_facts({kind: first[kind] for kind in kinds if kind in common})
    for name, plugins in words.items():
        differing = [f"{kind} {plugins[kind]}" for kind in kinds if kind in plugins and kind not in common]
        if differing:
            print_facts({name: "; ".join(differing)})


COMPARED = ("tokens/s", "mean accepted tokens (MAT)")
IMPLAUSIBLE = 1.1
"""How far the clock may flatter a run before it is told."""


class Progress:
    """One line per prompt on stderr; live where that disturbs no text, that is if stdout is not the same terminal."""

    def __init__(self, label: str, prompts: int, most_tokens: int) -> None:
        self._label = label
        self._prompts = prompts
        self._most = most_tokens
        self._live = sys.stderr.isatty() and not sys.stdout.isatty()
        self._shown = 0.0

    def update(self, prompt: int, tokens: int, steps: int, seconds: float) -> None:
        """Show how far prompt number ``prompt`` (from 0) is, at most every tenth of a second."""
        now = time.monotonic()
        if self._live and now - self._shown >= REFRESH_S:
            self._shown = now
            self._write(f"\r\x1b[K{self._line(prompt, tokens, steps, seconds)}")

    def finish(self, prompt: int, tokens: int, steps: int, seconds: float, reason: str) -> None:
        """Close the line of a prompt."""
        self._write(("\r\x1b[K" if self._live else "") + self._line(prompt, tokens, steps, seconds) + f", {reason}\n")

    def _line(self, prompt: int, tokens: int, steps: int, seconds: float) -> str:
        speed = number(tokens / seconds if seconds else None, 1)
        mat = number(tokens / steps if steps else None)
        which = f"prompt {prompt + 1}/{self._prompts}"
        return f"{self._label}: {which}, {tokens}/{self._most} tokens, {speed} tokens/s, MAT {mat}"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
