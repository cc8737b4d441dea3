"""The one place where golden runs touch the engine: composed config and prompts in, tokens and events out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from tests.golden.cases import CONTEXT, NEW_TOKENS, PROMPTS
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import write_checkpoint

CYCLE = ("step", "prefix", "budget", "tree_nodes", "drafted", "accepted", "tokens")
"""What is kept of a cycle: nothing that depends on the machine's speed or on rounding."""

SEED_STRIDE = 1_000_003
"""Between the seeds of successive prompts when they were recorded."""


def write_model(directory: Path) -> None:
    """The target of all golden runs; draft models are cut out of it."""
    write_checkpoint(directory, "smollm", num_hidden_layers=9, max_position_embeddings=CONTEXT)


def run_case(
    checkpoint: Path, overrides: Sequence[str], numbers: Sequence[int] = range(len(PROMPTS))
) -> list[dict[str, Any]]:
    """The answers to PROMPTS of these numbers in one pipeline, in float32 on the CPU, as data that JSON can hold."""
    settings = settings_of("backend=cpu", f"model.target={checkpoint}", *overrides)
    pipeline = build_pipeline(settings, Registry.discover())
    answers = []
    for number in numbers:
        events: list[Mapping[str, Any]] = []
        seeded = replace(pipeline.sampling, seed=pipeline.sampling.seed + SEED_STRIDE * number)
        options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "sampling": seeded, "random_stream": 0}
        stream = pipeline.stream(PROMPTS[number], request_id=number, emit=events.append, **options)
        tokens = [token for new in stream for token in new]
        answers.append({"tokens": tokens, **told(events)})
    return answers


def told(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The machine-independent parts of one request's events."""
    kinds = [event["event"] for event in events]
    assert kinds == ["request_start", "prefill", *["cycle"] * (len(kinds) - 3), "request_end"], kinds
    start, prefill, *cycles, end = events
    return {
        "prompt_tokens": start["prompt_tokens"],
        "prefill_tokens": prefill["tokens"],
        "finish_reason": end["finish_reason"],
        "cycles": [[*(cycle[key] for key in CYCLE), hits(cycle["attention"])] for cycle in cycles],
    }


def hits(attention: Mapping[str, Any] | None) -> str | None:
    """One sign per layer: + the prediction was accepted, - it was not, . there was none."""
    if attention is None:
        return None
    return "".join("." if hit is None else "+" if hit else "-" for hit in attention["hit"])
