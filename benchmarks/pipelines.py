"""Every pipeline against plain decoding, same prompts, same process, as a ratio.

    python benchmarks/pipelines.py --count 8 --new-tokens 64

Writes results/pipelines.json: machine, dtype, and per pipeline the speed-up over vanilla, acceptance rate, mean
accepted tokens, seconds per stage, attention hit rate, and how many prompts got vanilla's tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from spec_sdk.cli.composing import compose_config
from spec_sdk.metrics import summarise
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.prompts import read_prompt_file
from spec_sdk.registry import Registry
from spec_sdk.search_path import register_search_path
from spec_sdk.settings import Settings

SHORT_SINK = ["predictor.size=32"]
"""Many Spec-Bench prompts are shorter than 2 x 128 tokens, where the default prediction is trivially exact."""
PIPELINES: dict[str, list[str]] = {
    "sd_chain": [],
    "prompt_lookup": [],
    "specinfer_tree": [],
    "easyspec_chain": [],
    "easyspec_tree": [],
    "alspec": SHORT_SINK,
    "alspec_easyspec_tree": SHORT_SINK,
}
"""Pipelines and the options that they are measured with."""


def build(name: str, overrides: list[str]) -> Pipeline:
    config: Any = OmegaConf.to_container(compose_config([f"pipeline={name}", *overrides]), resolve=True)
    return build_pipeline(Settings.from_config(config, Path("unused")), Registry.discover())


def measure(pipeline: Pipeline, texts: list[str], new_tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Summary and tokens of all prompts."""
    events: list[dict[str, Any]] = []
    answers = []
    for i, text in enumerate(texts):
        prompt = pipeline.tokenizer.chat([{"role": "user", "content": text}])
        stream = pipeline.stream(prompt, request_id=i, max_new_tokens=new_tokens, emit=events.append)
        answers.append([token for tokens in stream for token in tokens])
    return summarise(events), answers


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", default="../shared/data/spec_bench.jsonl", help="JSONL of prompts")
    parser.add_argument("--count", type=int, default=8, help="prompts taken, evenly spread over the file")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--output", default="benchmarks/results/pipelines.json")
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_args()
    register_search_path()
    texts = read_prompt_file(arguments.prompts)
    texts = texts[:: max(1, len(texts) // arguments.count)][: arguments.count]
    vanilla = build("vanilla", arguments.overrides)
    measure(vanilla, texts[:1], 8)
    baseline, expected = measure(vanilla, texts, arguments.new_tokens)
    report: dict[str, Any] = {
        "machine": vanilla.backend.describe(),
        "target": vanilla.target_name,
        "dtype": vanilla.dtype,
        "overrides": arguments.overrides,
        "prompts": len(texts),
        "new_tokens": arguments.new_tokens,
        "vanilla": baseline,
        "pipelines": {},
    }
    print(f"{report['machine']}; {report['target']}, {report['dtype']}; {len(texts)} prompts x {arguments.new_tokens}")
    print(f"vanilla: {baseline['tokens_per_second']:.1f} tokens/s")
    print(f"{'pipeline':24}{'ratio':>8}{'MAT':>8}{'accept':>8}{'draft':>8}{'verify':>8}{'hits':>8}  tokens equal")
    for name, options in PIPELINES.items():
        pipeline = build(name, [*options, *arguments.overrides])
        summary, answers = measure(pipeline, texts, arguments.new_tokens)
        equal = sum(ours == theirs for ours, theirs in zip(answers, expected, strict=True))
        speedup = summary["tokens_per_second"] / baseline["tokens_per_second"]
        entry = {
            "speedup": speedup,
            "draft": pipeline.draft_name,
            "guarantee": pipeline.guarantee,
            "options": options,
            **summary,
        }
        report["pipelines"][name] = {**entry, "prompts_with_equal_tokens": equal}
        share = {stage: seconds / summary["decode_s"] for stage, seconds in summary["stage_s"].items()}
        columns = [
            f"{speedup:.2f}",
            f"{summary['mean_accepted_tokens']:.2f}",
            shown(summary["acceptance_rate"], ".2f"),
            f"{share['draft']:.0%}",
            f"{share['verify']:.0%}",
            shown(summary["attention"] and summary["attention"]["hit_rate"], ".2f"),
        ]
        print(f"{name:24}" + "".join(f"{column:>8}" for column in columns) + f"  {equal}/{len(texts)}", flush=True)
    Path(arguments.output).write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
