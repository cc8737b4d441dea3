"""The run in a directory of ``task=generate``: ``metrics.json``, ``events.jsonl`` and ``config.yaml``."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from spec_sdk.bench.cycle_counts import attention_of, depths_of, passes_of
from spec_sdk.bench.records import VANILLA, AnswerRecord, CandidateRecord
from spec_sdk.config.nested import value_at
from spec_sdk.errors import UserError, message_of
from spec_sdk.files import read_text
from spec_sdk.json_lines import JsonObject, Lines, read_object
from spec_sdk.metrics import SCHEMA_VERSION, STAGES
from spec_sdk.run_output import CONFIG, EVENTS, METRICS
from spec_sdk.run_report.commands import command_of
from spec_sdk.run_report.records import Cycle, Run, Timeline
from spec_sdk.what_ran import in_words

FINISHED = ("stop", "length")
AS_RECORDED = (
    *("finish_reason", "new_tokens", "prompt_tokens"),
    *("prefill_s", "decode_s", "stage_s", "steps", "drafted", "accepted"),
)
"""What a prompt's record and that of a benchmark's answer call the same."""
MACHINE = ("device", "hardware", "cpus", "cores", "threads", "platform", "python", "torch", "spec_sdk")
STAGES_OF_CALLS = {"prefill": "prefill", "feed": "draft", "grow": "draft", "score": "verify", "commit": "recover"}


def read_generate(directory: Path) -> Run:
    """The run of a directory. Raises UserError for files that are missing or not as they should be."""
    metrics = read_object(directory / METRICS)
    version = metrics.get("schema_version", int)
    if version != SCHEMA_VERSION:
        raise UserError(f"{metrics.where}: schema version {version}; this version of spec-sdk reads {SCHEMA_VERSION}")
    config = _config(directory / CONFIG)
    lines = Lines(directory / EVENTS)
    parts = _parts(lines)
    pipeline, machine = metrics.get("pipeline", str), metrics.part("machine")
    compared = metrics.part("comparison") if "comparison" in metrics.data else None
    halves = [(pipeline, metrics.parts("prompts"))]
    if compared is not None:
        # vanilla compared with itself would be one candidate otherwise
        halves.append((VANILLA if pipeline != VANILLA else f"{VANILLA}, again", compared.parts("prompts")))
    if len(parts) > len(halves):
        raise UserError(f"{lines.path}: it has events of more runs than {METRICS} tells of")
    asked = halves[0][1]
    answers = [
        answer
        for (name, prompts), events in zip(halves, parts, strict=False)
        for answer in _answers(name, prompts, asked, events, config, metrics.part("sampling"))
    ]
    models = metrics.part("models")
    overridden: list[str] = metrics.maybe("overridden", list) or []
    processes = machine.maybe("processes", int) or 1
    main = {
        "candidate": pipeline,
        "kind": "pipeline",
        "pipeline": pipeline,
        "overrides": [
            *(f"{key}={_chosen(key, config, metrics.data.get('plugins'))}" for key in overridden),
            *[f"{processes} processes"] * (processes > 1),
        ],
        "plugins": metrics.data.get("plugins"),
        "guarantee": metrics.data.get("guarantee"),
        "draft": models.data.get("draft"),
        "facts": {"memory": metrics.maybe("memory", dict) or {}, "processes": processes},
    }
    kept = None if compared is None else compared.maybe("guarantee", str)
    plain = {"kind": "pipeline", "pipeline": VANILLA, "guarantee": kept}
    others = [JsonObject(metrics.where, {"candidate": name, **plain}).typed(CandidateRecord) for name, _ in halves[1:]]
    return Run(
        path=directory,
        kind="generate",
        command=command_of(pipeline, config),
        started=next((event.data.get("timestamp") for part in parts for event in part), None),
        machine={key: machine.data[key] for key in MACHINE if key in machine.data},
        target=models.get("target", str),
        dtype=metrics.get("dtype", str),
        weights=", ".join(
            [
                f"{value_at(config, 'model.weights')}",
                *["rows in 8 bits"] * bool(metrics.maybe("rounds_rows", bool)),
                f"KV cache {value_at(config, 'model.kv_cache')}",
            ]
        ),
        workload={
            "prompts": config.get("prompt_file") or "of the command line",
            "sha256": _digest(asked),
            "count": len(asked),
            "new tokens": metrics.get("max_new_tokens", int),
            "sampling": metrics.get("sampling", dict),
            "ignore_eos": config.get("ignore_eos"),
            "chat": config.get("chat"),
        },
        candidates=[JsonObject(metrics.where, main).typed(CandidateRecord), *others],
        answers=answers,
        partial=_missing(halves, lines.torn),
        timelines=_timelines([name for name, _ in halves], parts),
    )


def _chosen(key: str, config: Mapping[str, Any], plugins: Any) -> str:
    """The value of an option; of the choice of a plugin its name, and its options that are not the defaults."""
    value = value_at(config, key)
    plugin = plugins.get(key) if isinstance(plugins, dict) else None
    return in_words(plugin) if isinstance(value, dict) and isinstance(plugin, dict) and "name" in plugin else str(value)


def _config(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(read_text(path, str(path)))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: no YAML: {message_of(error)[:120]}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: it has no options")
    return config


BEGINNINGS = {"request_start": "request", "follower": "rank"}
"""Events that a run has once of each request, or of each rank: what they are told by."""


def _parts(lines: Iterable[JsonObject]) -> list[list[JsonObject]]:
    """The events by the run that they are of, which may take turns at the prompts: a request that begins once more is
    the next run's, and so is a rank that tells of itself once more.
    """
    parts: list[list[JsonObject]] = []
    told: Counter[tuple[str, int]] = Counter()
    now = 0
    for event in lines:
        kind = event.get("event", str)
        if kind in BEGINNINGS:
            begun = (kind, event.get(BEGINNINGS[kind], int))
            now = told[begun]
            told[begun] += 1
        if kind == "request_start" and now == len(parts):
            parts.append([])
        if now >= len(parts):
            raise UserError(f"{event.where}: the first event must be request_start, not '{kind}'")
        parts[now].append(event)
    return parts


def _answers(
    name: str,
    prompts: Sequence[JsonObject],
    asked: Sequence[JsonObject],
    events: Sequence[JsonObject],
    config: Mapping[str, Any],
    sampling: JsonObject,
) -> list[AnswerRecord]:
    """Answers that came to their end, in order."""
    threshold, names = _threshold(config), _names(asked)
    answers = []
    for request, record in enumerate(prompts):
        cycles = [_cycle(e) for e in events if e.data.get("request") == request and e.data["event"] == "cycle"]
        prefill = record.maybe("prefill_s", float)
        if record.get("finish_reason", str) not in FINISHED or prefill is None:
            continue
        known = {key: record.data.get(key) for key in AS_RECORDED}
        measured = {
            "candidate": name,
            "temperature": sampling.get("temperature", float),
            "seed": sampling.get("seed", int),
            "batch_size": 1,
            "round": 0,
            "prompt": names[request] if request < len(names) else str(request),
            "task": "all",
            "turn": 0,
            "tokens": record.data.get("token_ids"),
            "seconds": prefill + record.get("decode_s", float),
            "first_token_s": prefill + sum(cycles[0][f"{stage}_s"] for stage in STAGES) if cycles else None,
            "first_tokens": len(cycles[0]["tokens"]) if cycles else None,
        }
        answer = JsonObject(record.where, {**known, **measured}).typed(AnswerRecord)
        if len({len(cycle["attention"]["hit"]) for cycle in cycles if cycle["attention"] is not None}) > 1:
            raise UserError(f"{record.where}: its cycles tell of attention in different numbers of layers")
        depths = depths_of([(cycle["drafted"], cycle["accepted"]) for cycle in cycles])
        attention = attention_of(cycles, threshold)
        answers.append(replace(answer, depths=depths, passes=passes_of(cycles), attention=attention))
    return answers


def _names(asked: Sequence[JsonObject]) -> list[str]:
    """What prompts are told apart by: their ids, or where these repeat their numbers."""
    ids = [str(prompt.data.get("id")) for prompt in asked]
    return ids if len(set(ids)) == len(ids) else [str(number) for number in range(len(ids))]


def _threshold(config: Mapping[str, Any]) -> float | None:
    if value_at(config, "attention_verifier.layer_thresholds"):
        return None
    threshold = value_at(config, "attention_verifier.threshold")
    return float(threshold) if isinstance(threshold, int | float) else None


def _cycle(event: JsonObject) -> Mapping[str, Any]:
    """What is counted of a cycle's event. Raises UserError where it is of another type."""
    counts = {key: event.get(key, int) for key in ("drafted", "accepted", "tree_nodes")}
    stages = {f"{stage}_s": event.get(f"{stage}_s", float) for stage in STAGES}
    attention = None
    if event.maybe("attention", dict) is not None:
        part = event.part("attention")
        attention = {"hit": part.get("hit", list[bool | None]), "error": part.get("error", list[float | None])}
    return {**counts, **stages, "tokens": event.get("tokens", list[int]), "attention": attention}


def _missing(halves: Sequence[tuple[str, Sequence[JsonObject]]], torn: bool) -> list[str]:
    told = [f"{EVENTS}: its last line is cut off"] * torn
    asked = len(halves[0][1])
    for name, prompts in halves:
        told += [f"{name} has {len(prompts)} of {asked} answers"] * (len(prompts) < asked)
        unfinished = [p for p in prompts if p.data.get("finish_reason") not in FINISHED]
        told += [f"{name}: {len(unfinished)} of {asked} answers broke off, and are left out"] * bool(unfinished)
    return told


def _digest(prompts: Sequence[JsonObject]) -> str:
    """What was asked, in a hash: with save_prompts=false by the prompts' ids and lengths."""
    asked = [[p.data.get("id"), p.data.get("prompt"), p.data.get("prompt_tokens")] for p in prompts]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _timelines(names: Sequence[str], parts: Sequence[Sequence[JsonObject]]) -> list[Timeline]:
    found = []
    for name, events in zip(names, parts, strict=False):
        found.append(Timeline(name, 0, _cycles(events)))
        followers = [event for event in events if event.data["event"] == "follower"]
        found += [Timeline(name, event.get("rank", int), _calls(event)) for event in followers]
    return found


def _calls(event: JsonObject) -> list[Cycle]:
    """What a rank that follows did, by the leader's stages."""
    calls = event.get("calls", list[tuple[str, float, float]])
    return [
        Cycle(None, begin + seconds, {STAGES_OF_CALLS.get(name, "other"): seconds}, {"call": name})
        for name, begin, seconds in calls
    ]


def _cycles(events: Sequence[JsonObject]) -> list[Cycle]:
    cycles = []
    for event in events:
        kind = event.data["event"]
        if kind == "prefill":
            seconds = {"prefill": event.get("seconds", float)}
            facts = {"tokens": event.data.get("tokens")}
        elif kind == "cycle":
            seconds = {stage: event.get(f"{stage}_s", float) for stage in STAGES}
            facts = {key: event.data.get(key) for key in ("step", "budget", "tree_nodes", "drafted", "accepted")}
            facts["tokens"] = len(event.get("tokens", list))
        else:
            continue
        cycles.append(Cycle(event.get("request", int), _clock(event), seconds, facts))
    return cycles


def _clock(event: JsonObject) -> float:
    stamp = event.get("timestamp", str)
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError as error:
        raise UserError(f"{event.where}: the timestamp {stamp!r} is no time") from error
