"""The directory of ``task=accuracy``: a benchmark's, with other figures and tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from spec_sdk.accuracy.figures import figures_of
from spec_sdk.accuracy.records import AccuracyRun, read_accuracy
from spec_sdk.accuracy.tables import own_tables, paper_tables
from spec_sdk.bench.bench_directory import BenchDirectory
from spec_sdk.bench.records import SCHEMA_VERSION
from spec_sdk.bench.show import facts_of, show_failures
from spec_sdk.counted import counted
from spec_sdk.events import finite
from spec_sdk.files import write_atomically, write_json
from spec_sdk.run_output import SUMMARY
from spec_sdk.tables import print_facts, print_table

TABLES = "accuracy.md"
"""All tables, the paper's layouts among them."""


class AccuracyDirectory(BenchDirectory):
    """Writes ``summary.json`` and ``accuracy.md``."""

    def derive(self, directory: Path, write: bool, file: TextIO) -> int:
        run = read_accuracy(directory)
        if write:
            write_json(directory / SUMMARY, summary_of(run))
            write_atomically(directory / TABLES, as_markdown(run))
        print_facts(facts(run), file)
        print(file=file)
        for table in own_tables(run):
            print_table(table.title, table.columns, table.rows, file)
        for line in remarks(run):
            print(line, file=file)
        show_failures(run.bench, file)
        failed = any(failure.reason != "too_long" for failure in run.bench.failures)
        return 1 if failed else 0


def summary_of(run: AccuracyRun) -> dict[str, Any]:
    """The run as recorded, and the figures of every sampler."""
    summary: dict[str, Any] = finite(
        {
            "schema_version": SCHEMA_VERSION,
            "run": run.bench.head.data,
            "candidates": [candidate.as_record() for candidate in run.bench.candidates.values()],
            "figures": [asdict(figures) for figures in figures_of(run)],
            "failures": [failure.as_record() for failure in run.bench.failures],
        }
    )
    return summary


def facts(run: AccuracyRun) -> dict[str, str]:
    """What all figures were measured with."""
    head = run.bench.head.data
    prompts, seeds, sampling = head["prompts"], head["rounds"], head["sampling"]
    filters = [f"{name} {sampling[name]}" for name in ("top_k", "top_p", "min_p", "repetition_penalty")]
    defaults = ("top_k 0", "top_p 1.0", "min_p 0.0", "repetition_penalty 1.0")
    cue = "" if head["cue"] is None else f", '{head['cue']}' below each"
    return {
        **facts_of(run.bench),
        "pipeline": " ".join(head["pipeline"]),
        "prompts": f"{prompts['count']} of {prompts['file']}{cue}, {head['new_tokens']} new tokens",
        "sampling": ", ".join(
            [f"temperature {head['temperatures'][0]:g}", *(text for text in filters if text not in defaults)]
            + [counted(seeds, "seed")]
        ),
    }


def as_markdown(run: AccuracyRun) -> str:
    """All tables as one text."""
    lines = "".join(f"- {name}: {text}\n" for name, text in facts(run).items())
    tables = [table.as_markdown() for table in [*own_tables(run), *paper_tables(run)]]
    notes = "".join(f"{line}\n" for line in remarks(run))
    return "\n".join(["# Accuracy\n", lines, *tables, *([notes] if notes else [])])


def remarks(run: AccuracyRun) -> list[str]:
    """What the tables do not say of themselves."""
    found = []
    for each in figures_of(run):
        candidate = run.bench.candidates[each.choice.candidate]
        same = bool(each.compared) and each.equal == each.compared
        if each.choice.alpha is not None and same and each.choice.candidate != each.choice.baseline:
            drafter = (candidate.plugins or {}).get("drafter", {}).get("name")
            found.append(
                f"{each.choice.candidate}: every answer is {each.choice.baseline}'s. A sigmoid judges tokens that were "
                f"drawn from draft logits; did drafter={drafter} draw any?"
            )
    return found
