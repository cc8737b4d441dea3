"""What a run of ``task=transcribe`` leaves: files for programs, and a table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spec_sdk.bench.machine import run_facts
from spec_sdk.bench.records import VANILLA
from spec_sdk.events import finite
from spec_sdk.metrics import SCHEMA_VERSION, comparison
from spec_sdk.settings import Settings
from spec_sdk.speech.transcribing import TranscribingRun, Transcript, same_windows
from spec_sdk.tables import number, percent, print_facts, print_table
from spec_sdk.version import __version__
from spec_sdk.what_ran import in_words

TRANSCRIPTS = "transcripts.jsonl"
"""A line for each recording and pipeline."""
WORK = {
    "encoder_s": "encoder",
    "prompt_s": "prompts",
    "draft_s": "drafting",
    "target_s": "verifying",
    "sampling_s": "sampling",
    "recover_s": "recovering",
}
"""Parts of the work, and what the table calls them."""
SHOWN = ("drafter", "verifier", "sampler")


def progress_line(index: int, count: int, run: TranscribingRun, found: Transcript) -> str:
    """One recording of one pipeline, for stderr."""
    sound, errors = found.transcription, found.errors
    rate = "" if errors is None else f", WER {percent(errors.rate)}"
    return (
        f"{index + 1}/{count} {found.recording.id}: {run.name}, {sound.seconds:.1f} s of {sound.language}, "
        f"real time factor {sound.real_time_factor:.3f}{rate}"
    )


def transcript_lines(runs: Sequence[TranscribingRun], save_references: bool) -> str:
    """All of transcripts.jsonl."""
    records = [transcript.as_data(run.name, save_references) for run in runs for transcript in run.transcripts]
    records += [
        {**run.unfinished.as_data(run.name, save_references), "unfinished": True}
        for run in runs
        if run.unfinished is not None
    ]
    return "".join(json.dumps(finite(record), ensure_ascii=False) + "\n" for record in records)


def metrics_of(
    runs: Sequence[TranscribingRun],
    app: Settings,
    config: Mapping[str, Any],
    failures: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """All of metrics.json: the first pipeline's at the top, and every one's under ``pipelines``.

    ``config``: the task's options.
    """
    first, base = runs[0], vanilla_of(runs)
    metrics: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "pipeline": first.pipeline.name,
        "overridden": app.pipeline.overridden,
        "plugins": first.plugins,
        "guarantee": first.pipeline.guarantee_under(app.sampling),
        "models": {"target": first.pipeline.target_name, "draft": first.pipeline.draft_name},
        "backend": first.pipeline.backend.name,
        "dtype": first.pipeline.dtype,
        "memory": dict(first.pipeline.memory),
        "machine": {**run_facts(first.pipeline.backend), "spec_sdk": __version__},
        "sampling": asdict(app.sampling),
        "task": dict(config),
        "summary": first.summary(),
        "pipelines": [
            {
                "name": run.name,
                "overrides": list(run.overrides),
                "plugins": run.plugins,
                "guarantee": run.pipeline.guarantee_under(app.sampling),
                "draft": run.pipeline.draft_name,
                "same_windows_as_vanilla": same_as(run, base, app),
                "summary": run.summary(),
            }
            for run in runs
        ],
        "failures": list(failures),
    }
    if base is not None and base is not first:
        metrics["comparison"] = comparison(metrics["summary"], base.summary())
    found: dict[str, Any] = finite(metrics)
    return found


def vanilla_of(runs: Sequence[TranscribingRun]) -> TranscribingRun | None:
    """Plain decoding, if it is one of several."""
    return next((run for run in runs if run.name == VANILLA), None) if len(runs) > 1 else None


def same_as(run: TranscribingRun, base: TranscribingRun | None, app: Settings) -> list[int] | None:
    """Windows with plain decoding's tokens, and all; None without plain decoding beside, and where tokens are drawn."""
    return None if base is None or base is run or app.sampling.temperature else list(same_windows(run, base))


def show(runs: Sequence[TranscribingRun], app: Settings) -> None:
    """What ran, how right and how fast it was, and where the time went: a row for each pipeline."""
    first, base = runs[0], vanilla_of(runs)
    summaries = [run.summary() for run in runs]
    print_facts(
        {
            "target": f"{first.pipeline.target_name}, {first.pipeline.dtype}",
            **{run.name: ", ".join(in_words(run.plugins[kind]) for kind in SHOWN) for run in runs},
            "audio": f"recordings: {summaries[0]['recordings']}, {summaries[0]['audio_s']:.1f} s",
        }
    )
    print(file=sys.stderr)
    columns = ["", "WER", "RTF", "tokens/s", *_heads(base, app), "MAT", "accepted"]
    rows = [
        [
            run.name,
            percent(summary["word_error_rate"]),
            number(summary["real_time_factor"], 3),
            number(summary["tokens_per_second"], 1),
            *_beside(run, summary, base, app),
            number(summary["mean_accepted_tokens"]),
            percent(summary["acceptance_rate"]),
            run.pipeline.guarantee_under(app.sampling),
        ]
        for run, summary in zip(runs, summaries, strict=True)
    ]
    print_table("", [*columns, "guarantee"], rows)
    times = [
        [
            run.name,
            number(summary["preparing_s"]),
            *(number(summary["work_s"][part]) for part in WORK),
        ]
        for run, summary in zip(runs, summaries, strict=True)
    ]
    print_table("seconds", ["", "reading", *WORK.values()], times)
    if cut_off := first.cut_off():
        print(f"windows cut off by max_new_tokens, or by the context's length: {cut_off}", file=sys.stderr)


def _heads(base: TranscribingRun | None, app: Settings) -> list[str]:
    """Columns that there are beside plain decoding; drawn tokens are not the same, and need not be."""
    return ["ratio", *["as vanilla"] * (not app.sampling.temperature)] if base is not None else []


def _beside(run: TranscribingRun, summary: Mapping[str, Any], base: TranscribingRun | None, app: Settings) -> list[str]:
    """Tokens per second over plain decoding's, and the windows that have its tokens."""
    if base is None:
        return []
    same = same_as(run, base, app)
    cells = [
        number(comparison(summary, base.summary())["speedup"], 2, "×"),
        "" if same is None else f"{same[0]} of {same[1]}",
    ]
    return cells[: len(_heads(base, app))]
