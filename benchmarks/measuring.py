"""What benchmarks of whole pipelines share: build one from overrides, run prompts through it, write results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spec_sdk.config.composing import settings_for
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.prompts import SHIPPED, encode
from spec_sdk.registry import Registry

RESULTS = Path(__file__).parent / "results"
LONG_TASKS = ("rag", "summarization")
PROMPTS = SHIPPED["spec_bench_sample"]
"""What a benchmark takes without ``--prompts``. Published figures were taken with the whole of Spec-Bench."""

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """The first turn of one line of Spec-Bench, and the task it belongs to."""

    text: str
    task: str


def spread_prompts(path: Path, count: int, longest: int | None = None) -> list[Prompt]:
    """``count`` prompts evenly spread over the file (which is sorted by task), of at most ``longest`` characters."""
    if not path.is_file():
        raise SystemExit(f"error: there is no {path}; give a JSONL of Spec-Bench's layout as --prompts")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = [Prompt(line["turns"][0], line.get("task", "all")) for line in lines]
    return spread([prompt for prompt in prompts if longest is None or len(prompt.text) <= longest], count)


def long_prompts(pipeline: Pipeline, path: Path, shortest: int, longest: int) -> list[Prompt]:
    """Those of the file's prompts that bring a text along and have ``shortest`` to ``longest`` tokens."""
    every = [prompt for prompt in spread_prompts(path, 10**6) if prompt.task in LONG_TASKS]
    return [prompt for prompt in every if shortest <= len(tokens_of(pipeline, prompt)) <= longest]


def tokens_of(pipeline: Pipeline, prompt: Prompt) -> list[int]:
    """The prompt's tokens: as a chat, where the model has a chat template."""
    return encode(pipeline.tokenizer, prompt.text, chat=None)


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most ``count`` of ``items``, evenly spread."""
    step = max(1.0, len(items) / max(1, count))
    return [items[int(i * step)] for i in range(min(count, len(items)))]


def build(*overrides: str) -> Pipeline:
    """The pipeline that these command-line overrides name."""
    return build_pipeline(settings_for(overrides), Registry.discover())


@dataclass(frozen=True)
class Answer:
    """One prompt's new tokens, and the events of making them."""

    prompt: Prompt
    tokens: list[int]
    events: list[dict[str, Any]]


def answer(pipeline: Pipeline, prompts: Sequence[Prompt], new_tokens: int) -> list[Answer]:
    """Answer every prompt up to the model's end token: as a chat, where the model has a chat template."""
    answers = []
    for i, prompt in enumerate(prompts):
        events: list[dict[str, Any]] = []
        stream = pipeline.stream(
            tokens_of(pipeline, prompt), request_id=i, max_new_tokens=new_tokens, emit=events.append
        )
        answers.append(Answer(prompt, [token for step in stream for token in step], events))
    return answers


def events_of(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """All their events, in order: what ``spec_sdk.metrics.summarise`` takes."""
    return [event for answer in answers for event in answer.events]


def shown(value: float | None, form: str) -> str:
    """``value`` for a table; - if there is none."""
    return "-" if value is None else format(value, form)


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write ``report`` as JSON, making its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
