"""Directories of runs as task=bench and task=generate write them, with numbers that are made up and always the same."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from spec_sdk.config.composing import settings_for
from spec_sdk.metrics import comparison, request_metrics, summarise

MACHINE = {
    "device": "AMD EPYC, 2 threads, native kernels",
    "hardware": "AMD EPYC, 2 threads",
    "cores": 2,
    "threads": 2,
    "platform": "Linux-6.18",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "load_average": [0.1, 0.2, 0.3],
}
TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
LAYERS = 30
NEW_TOKENS = 64
SPEEDS: Mapping[str, tuple[float, float, str]] = {
    "vanilla": (1.0, 0.0, "exact"),
    "suffix": (1.35, 0.35, "exact"),
    "eagle_tree": (1.9, 0.6, "exact"),
    "alspec λ=0.05": (1.1, 0.0, "relaxed"),
    "alspec λ=0.1": (1.25, 0.0, "relaxed"),
    "alspec λ=0.2": (1.2, 0.0, "relaxed"),
    "llama.cpp": (1.15, 0.0, "exact"),
}
"""Candidate → speed beside vanilla, acceptance, guarantee."""
THRESHOLDS = {"alspec λ=0.05": 0.05, "alspec λ=0.1": 0.1, "alspec λ=0.2": 0.2}
PEER = "llama.cpp"


def run_record(**differing: Any) -> dict[str, Any]:
    """The first record of a bench."""
    return {
        "record": "run",
        "schema_version": 1,
        "spec_sdk": "0.1.0",
        "command": ["python", "-m", "spec_sdk", "task=bench", "task.pipelines=[vanilla,suffix]"],
        "started": "2026-11-22T19:00:00Z",
        "resumed": False,
        "machine": MACHINE,
        "target": "SmolLM2-135M-Instruct",
        "dtype": "bfloat16",
        "weights": "auto",
        "context": 8192,
        "prompts": {"file": "spec_bench_sample", "sha256": "ab" * 32, "count": 12},
        "new_tokens": NEW_TOKENS,
        "rounds": 1,
        "temperatures": [0.0, 1.0],
        "batch_sizes": [1, 2, 4, 8],
        **differing,
    }


def candidate_record(name: str, **differing: Any) -> dict[str, Any]:
    """A candidate of :data:`SPEEDS`."""
    peer = name == PEER
    predictor = {"name": "attention_sink", "size": 128} if name in THRESHOLDS else {"name": "none"}
    return {
        "record": "candidate",
        "candidate": name,
        "kind": "peer" if peer else "pipeline",
        "pipeline": None if peer else name.partition(" ")[0],
        "overrides": [f"attention_verifier.threshold={THRESHOLDS[name]}"] if name in THRESHOLDS else [],
        "plugins": {} if peer else {"drafter": {"name": name.partition(" ")[0]}, "predictor": predictor},
        "guarantee": SPEEDS[name][2],
        "draft": None,
        "load_s": 1.2,
        "facts": {"version": "0.3.2", "threads": 2} if peer else {},
        **differing,
    }


def answer_record(name: str, prompt: int, temperature: float = 0.0, **differing: Any) -> dict[str, Any]:
    """One answer; the same arguments give the same numbers."""
    speed, rate, guarantee = SPEEDS[name]
    draws = random.Random(f"{name} {prompt} {temperature}")
    steps = max(1, round(NEW_TOKENS / (1 + 3 * rate)))
    seconds = NEW_TOKENS / 40 / speed * draws.uniform(0.85, 1.15)
    verify, draft = 0.8 * seconds, 0.12 * seconds if rate else 0.0
    shared = NEW_TOKENS if guarantee == "exact" else draws.randrange(NEW_TOKENS // 3, NEW_TOKENS + 1)
    tokens = [i if i < shared else 1000 + i for i in range(NEW_TOKENS)]
    drafted = 4 * steps if rate else 0
    depths = [[steps, round(steps * rate**depth)] for depth in range(1, 5)] if rate else []
    hits = (
        [[round(20 * min(1.0, 0.3 + THRESHOLDS[name] * 3 + 0.4 * (layer % 5) / 5)), 20] for layer in range(LAYERS)]
        if name in THRESHOLDS
        else None
    )
    record = {
        "record": "answer",
        "candidate": name,
        "temperature": temperature,
        "batch_size": 1,
        "round": 0,
        "prompt": str(81 + prompt),
        "task": TASKS[prompt % len(TASKS)],
        "turn": 0,
        "seed": 0,
        "prompt_tokens": 57,
        "new_tokens": NEW_TOKENS,
        "finish_reason": "length",
        "tokens": tokens,
        "seconds": seconds,
        "first_token_s": 0.07 * seconds,
        "prefill_s": 0.06 * seconds,
        "decode_s": 0.93 * seconds,
        "stage_s": {"draft": draft, "verify": verify, "recover": 0.93 * seconds - verify - draft},
        "steps": steps,
        "drafted": drafted,
        "accepted": sum(accepted for _, accepted in depths),
        "depths": depths,
        "nodes": drafted,
        "passes": {"8": [steps - 1, (1 - 0.5 / steps) * verify], "1": [1, 0.5 / steps * verify]}
        if rate
        else {"1": [steps, verify]},
        "attention": None if hits is None else {"hits": hits, "threshold": THRESHOLDS[name], "mean_error": 0.04},
        "resident_bytes": 812_000_000,
    }
    if prompt == 0:
        record["timeline"] = timeline(seconds, steps, 4 if rate else 0)
    if name == PEER:
        unknown = (
            "timeline",
            "prefill_s",
            "decode_s",
            "stage_s",
            "steps",
            "drafted",
            "accepted",
            "attention",
            "resident_bytes",
        )
        record |= dict.fromkeys(unknown)
        record |= {"depths": None, "passes": None}
    return record | differing


def timeline(seconds: float, steps: int, drafted: int) -> list[dict[str, float]]:
    """A prefill and cycles that share an answer's seconds evenly."""
    each = 0.94 * seconds / steps
    stages = {"draft": 0.12 * each if drafted else 0.0, "verify": 0.8 * each, "recover": 0.05 * each}
    cycles = [
        {"end_s": 0.06 * seconds + step * each, **stages, "step": step, "drafted": drafted, "accepted": 1, "tokens": 2}
        for step in range(1, steps + 1)
    ]
    return [{"end_s": 0.06 * seconds, "prefill": 0.05 * seconds}, *cycles]


def batch_record(name: str, size: int, first: int = 0) -> dict[str, Any]:
    """A batch that was served together."""
    seconds = NEW_TOKENS * size / (40 * SPEEDS[name][0] * size**0.6)
    return {
        "record": "batch",
        "candidate": name,
        "temperature": 0.0,
        "batch_size": size,
        "round": 0,
        "first": first,
        "prompts": [str(81 + first + i) for i in range(size)],
        "seconds": seconds,
        "new_tokens": NEW_TOKENS * size,
        "first_token_s": [0.1] * size,
    }


def bench_records(names: Sequence[str] = tuple(SPEEDS), prompts: int = 12, **run: Any) -> list[dict[str, Any]]:
    """A whole bench."""
    records = [run_record(**run)]
    for name in names:
        records.append(candidate_record(name))
        records.append({"record": "warm_up", "candidate": name, "temperature": 0.0, "seconds": 3.2})
        for temperature in (0.0, 1.0):
            records += [answer_record(name, prompt, temperature) for prompt in range(prompts)]
        records += [batch_record(name, size) for size in (2, 4, 8) if name != PEER]
        if name in THRESHOLDS:
            records.append(
                {"record": "check", "candidate": name, "prompt": "81", "turn": 0, "batch_size": 1, "round": 0}
                | {"equal": False, "first_difference": 37, "tie": True, "gap": 0.011, "allowed": 0.031}
            )
    return records


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """A file of JSON lines; its directory is made, and returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path.parent


def write_bench(directory: Path, records: Sequence[Mapping[str, Any]] | None = None) -> Path:
    """A bench's directory."""
    return write_lines(directory / "bench.jsonl", bench_records() if records is None else records)


def cycle(step: int, drafted: int, accepted: int, seconds: float, hit: Sequence[bool | None] | None) -> dict[str, Any]:
    """An event of a cycle that took ``seconds``."""
    return {
        "event": "cycle",
        "step": step,
        "prefix": 50 + step,
        "budget": drafted,
        "draft_s": 0.2 * seconds if drafted else 0.0,
        "verify_s": 0.7 * seconds,
        "verdict_s": 0.02 * seconds,
        "recover_s": 0.1 * seconds,
        "tree_nodes": drafted + 1,
        "drafted": drafted,
        "accepted": accepted,
        "level_sizes": [1] * drafted,
        "accepted_ranks": [1] * accepted,
        "tokens": [100 + step * 10 + i for i in range(accepted + 1)],
        "host_reads": 1,
        "attention": None if hit is None else {"hit": list(hit), "error": [None if h is None else 0.05 for h in hit]},
    }


def events_of(prompts: int, cycles: int, drafted: int, hits: bool = False) -> list[dict[str, Any]]:
    """The events of one pipeline over all prompts."""
    events: list[dict[str, Any]] = []
    for request in range(prompts):
        mine: list[dict[str, Any]] = [
            {"event": "request_start", "prompt_tokens": 40},
            {"event": "prefill", "seconds": 0.08, "drafter_s": None, "tokens": 39, "draft": None},
        ]
        for step in range(1, cycles + 1):
            hit = [(layer + step) % 3 > 0 if layer else None for layer in range(LAYERS)] if hits else None
            mine.append(cycle(step, drafted, min(drafted, step % 3), 0.02 + 0.004 * drafted, hit))
        mine.append({"event": "request_end", "finish_reason": "length"})
        events += [{"request": request, **event} for event in mine]
    return events


def write_generate(
    directory: Path, *overrides: str, drafted: int = 4, compare: bool = True, hits: bool = False, prompts: int = 2
) -> Path:
    """The directory of a run of task=generate with ``overrides``."""
    settings = settings_for([*overrides, f"compare={str(compare).lower()}"])
    runs = [(settings.pipeline.name, events_of(prompts, 12, drafted, hits))]
    if compare:
        runs.append(("vanilla", events_of(prompts, 24, 0)))
    clock, lines = datetime(2026, 11, 22, 19, 0, tzinfo=UTC), []
    for name, events in runs:
        for event in events:
            stages = ("seconds", "draft_s", "verify_s", "recover_s")
            clock += timedelta(seconds=0.001 + sum(event.get(stage, 0.0) for stage in stages))
            lines.append({"pipeline": name, **event, "timestamp": clock.isoformat().replace("+00:00", "Z")})
    summaries = [_without_attention(events) for _, events in runs]
    metrics: dict[str, Any] = {
        "schema_version": 1,
        "pipeline": settings.pipeline.name,
        "overridden": settings.pipeline.overridden,
        "plugins": {"drafter": {"name": settings.drafter["name"]}, "predictor": {"name": settings.predictor["name"]}},
        "guarantee": "relaxed" if hits else "exact",
        "models": {"target": "SmolLM2-135M-Instruct", "draft": None},
        "backend": "cpu",
        "dtype": settings.model.dtype,
        "memory": {"target_weights": 96_436_224},
        "machine": {
            "device": MACHINE["device"],
            "hardware": MACHINE["hardware"],
            "compiled": {"seconds": 0.0},
            "processes": 1,
            "device_groups": [1],
            **{key: MACHINE[key] for key in ("cores", "threads", "platform", "python", "torch")},
            "cpus": 2,
            "spec_sdk": "0.1.0",
        },
        "sampling": {"temperature": settings.sampling.temperature, "seed": settings.sampling.seed},
        "max_new_tokens": settings.max_new_tokens,
        "prompts": summaries[0][0],
        "summary": summaries[0][1],
    }
    if compare:
        compared = comparison(summaries[0][1], summaries[1][1])
        guarantee = "distribution" if settings.sampling.temperature else "exact"
        metrics["comparison"] = {**compared, "prompts": summaries[1][0], "guarantee": guarantee}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    (directory / "config.yaml").write_text(yaml.safe_dump(dict(settings.kept)), encoding="utf-8")
    return write_lines(directory / "events.jsonl", lines)


def _without_attention(events: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Records of prompts and the summary. (What metrics.json says of attention is not what the report reads.)"""
    plain = [{**event, "attention": None} if event["event"] == "cycle" else event for event in events]
    requests = sorted({event["request"] for event in plain})
    records = [
        {"id": i, "prompt": f"Prompt {i}", **request_metrics([e for e in plain if e["request"] == i]), "text": "…"}
        for i in requests
    ]
    return records, summarise(plain)
