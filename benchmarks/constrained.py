"""Constrained decoding on the default model: what masks cost, what forced tokens gain, and whether answers are valid.

    python -m benchmarks.constrained --part engines
    python -m benchmarks.constrained --part speed
    python -m benchmarks.constrained --part schemas

``engines``: llguidance and, where it is installed, xgrammar over the same JSON texts: to compile a schema, to fill a
mask, and to go four tokens ahead and back, by the processor's time. ``speed``: tokens per second of plain decoding and
other pipelines, free, constrained without taking forced tokens at once, and with it, in interleaved rounds.
``schemas``: 200 varied schemas at temperature 1, eight at once; every finished answer is held to its schema. Each part
writes its own key of results/constrained.json.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.places import RESULTS
from benchmarks.support.grammar_rivals import GrammarEngine, LLGuidance, XGrammar, followed
from benchmarks.support.schemas import varied_schemas
from spec_sdk import Engine, Request
from spec_sdk.bench.machine import hardware_name, machine_facts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script, script_parser

RECORDS: dict[str, dict[str, Any]] = {
    "Describe a made-up person": {
        "first_name": {"type": "string", "maxLength": 20},
        "last_name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "occupation": {"type": "string", "maxLength": 30},
        "favourite_colour": {"enum": ["red", "green", "blue", "yellow"]},
    },
    "Describe a book that you know": {
        "title": {"type": "string", "maxLength": 40},
        "author": {"type": "string", "maxLength": 30},
        "publication_year": {"type": "integer", "minimum": 1500, "maximum": 2025},
        "genre": {"type": "string", "maxLength": 20},
        "available_languages": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "Make up a booking of a hotel room": {
        "hotel_name": {"type": "string", "maxLength": 30},
        "guest": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "email_address": {"type": "string", "maxLength": 30},
            },
            "required": ["name", "email_address"],
            "additionalProperties": False,
        },
        "number_of_nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "breakfast_included": {"type": "boolean"},
    },
    "List three cities of Europe": {
        "cities": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 15},
                    "country": {"type": "string", "maxLength": 15},
                    "population": {"type": "integer", "minimum": 1000, "maximum": 20000000},
                },
                "required": ["name", "country", "population"],
                "additionalProperties": False,
            },
        }
    },
}
PIPELINES = ("vanilla", "suffix", "mixed", "eagle_tree")
TOKENS, ROUNDS = 64, 2


def schema_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def engines(engine: Engine) -> dict[str, Any]:
    """Both engines over one text of each schema that both take."""
    tokenizer, vocabulary = engine.tokenizer, engine.pipeline.models.target.executor.vocabulary
    rivals: list[GrammarEngine] = [LLGuidance(tokenizer, vocabulary)]
    if importlib.util.find_spec("xgrammar") is not None:
        rivals.append(XGrammar(tokenizer, vocabulary))
    texts = []
    for schema in [schema_of(properties) for properties in RECORDS.values()] + varied_schemas(40):
        node = {"name": "json_schema", "schema": schema, "whitespace": "single"}
        [answer] = engine.generate("Answer in JSON.", constraint=node, max_new_tokens=200, temperature=1.0, seed=1)
        if answer.finish_reason == "stop":
            texts.append((schema, answer.tokens[:-1]))
    found: dict[str, Any] = {"texts": len(texts), "tokens": sum(len(tokens) for _, tokens in texts)}
    for rival in rivals:
        times: list[Any] = []
        refused = 0
        for schema, tokens in texts:
            try:
                times.append(followed(rival, schema, tokens, vocabulary, time.process_time))
            except (ValueError, RuntimeError) as error:
                refused += 1
                print(f"{rival.name}: {str(error)[:200]}", file=sys.stderr)
        found[rival.name] = {
            "followed": len(times),
            "refused": refused,
            "compile_ms": _spread([1e3 * compile_s for compile_s, _, _ in times]),
            "mask_us": _spread([1e6 * s for _, masks_s, _ in times for s in masks_s]),
            "ahead_and_back_us": _spread([1e6 * s for _, _, walks_s in times for s in walks_s]),
        }
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "mean": float(np.mean(values)),
        "p95": float(np.percentile(values, 95)),
        "max": float(np.max(values)),
    }


def speed(engine: Engine) -> dict[str, Any]:
    """Tokens per second of every pipeline and mode: of each round's tokens and decoding seconds, the median round."""
    made = {name: engine if name == "vanilla" else engine.with_pipeline(name, max_num_seqs=1) for name in PIPELINES}
    without = {name: engine.with_pipeline(name, overrides=["forced_tokens=false"], max_num_seqs=1) for name in made}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(ROUNDS + 1):
        for name in made:
            for mode in ("free", "constrained", "forced"):
                one, answers = (without if mode == "constrained" else made)[name], []
                for prompt, properties in RECORDS.items():
                    node = {"name": "json_schema", "schema": schema_of(properties), "whitespace": "single"}
                    answers += one.generate(
                        f"{prompt}. Answer in JSON.",
                        constraint=None if mode == "free" else node,
                        max_new_tokens=TOKENS,
                    )
                if number:
                    rows.setdefault((name, mode), []).append(_round([answer.metrics for answer in answers]))
    return {
        f"{name}, {mode}": {key: statistics.median(row[key] for row in found) for key in found[0]}
        for (name, mode), found in rows.items()
    }


def _round(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    tokens, seconds = (sum(one[key] for one in metrics) for key in ("new_tokens", "decode_s"))
    steps = sum(one["steps"] for one in metrics)
    told = [one["constraint"] for one in metrics if "constraint" in one]
    mask_s = sum(one["seconds"] for one in told)
    return {
        "tokens_per_second": tokens / seconds,
        "tokens": tokens,
        "mean_accepted_tokens": tokens / steps,
        "constraint_ms_per_step": 1e3 * mask_s / steps,
        "constraint_share_of_time": mask_s / seconds,
        **{key: sum(one[key] for one in told) for key in ("taken", "added", "added_accepted")},
    }


def schemas(engine: Engine, count: int) -> dict[str, Any]:
    """Answers to varied schemas, eight at once, held to their schemas by jsonschema."""
    import jsonschema

    checker = jsonschema.FormatChecker(["date", "ipv4", "uuid"])
    mixed = engine.with_pipeline("mixed", max_num_seqs=8)
    varied = varied_schemas(count)
    asked = [
        Request(
            "Answer in JSON.",
            constraint={"name": "json_schema", "schema": schema, "whitespace": ("single", "any")[i % 2]},
            seed=i,
            temperature=1.0,
            max_new_tokens=384,
        )
        for i, schema in enumerate(varied)
    ]
    valid = invalid = unfinished = 0
    for schema, answer in zip(varied, mixed.generate(asked), strict=True):
        if answer.finish_reason != "stop":
            unfinished += 1
            continue
        try:
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(answer.text))
            valid += 1
        except (jsonschema.ValidationError, ValueError) as error:
            invalid += 1
            print(f"{answer.text}\n{str(error)[:300]}", file=sys.stderr)
    return {"schemas": count, "valid": valid, "invalid": invalid, "unfinished": unfinished, "temperature": 1.0}


def main() -> int:
    parser = script_parser(__doc__, output=RESULTS / "constrained.json", overrides=["model.dtype=bfloat16"])
    parser.add_argument("--part", choices=("engines", "speed", "schemas"), required=True)
    parser.add_argument("--count", type=int, default=200, help="schemas of the part schemas")
    options = parser.parse_args()
    engine = Engine.from_pipeline("vanilla", overrides=options.overrides, max_num_seqs=1)
    parts = {"engines": engines, "speed": speed, "schemas": lambda engine: schemas(engine, options.count)}
    found = parts[options.part](engine)
    kept = json.loads(options.output.read_text(encoding="utf-8")) if options.output.is_file() else {}
    about = machine_facts(hardware_name(torch.device("cpu")))
    write_report(options.output, {**kept, options.part: {**about, "overrides": options.overrides, **found}})
    print(json.dumps(found, indent=1))
    return 1 if found.get("invalid") else 0


if __name__ == "__main__":
    sys.exit(run_script(main))
