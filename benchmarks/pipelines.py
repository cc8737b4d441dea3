"""Every pipeline against plain decoding, same prompts, same process, as a ratio.

    python benchmarks/pipelines.py --count 8 --new-tokens 64

Writes results/pipelines.json: machine, dtype, and per pipeline the speed-up over vanilla, acceptance rate, mean
accepted tokens, seconds per stage, attention hit rate, and how many prompts got vanilla's tokens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.measuring import PROMPTS, RESULTS, answer, build, events_of, shown, spread_prompts, write_report
from spec_sdk.metrics import summarise

SHORT_SINK = ["predictor.size=32"]
"""Many Spec-Bench prompts are shorter than 2 x 128 tokens, where the default prediction is trivially exact."""
PIPELINES: dict[str, list[str]] = {
    "sd_chain": [],
    "prompt_lookup": [],
    "specinfer_tree": [],
    "easyspec_chain": [],
    "easyspec_paper": [],
    "alspec": SHORT_SINK,
    "alspec_easyspec_tree": SHORT_SINK,
}
"""Pipelines and the options that they are measured with."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--count", type=int, default=8, help="prompts taken, evenly spread over the file")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--output", type=Path, default=RESULTS / "pipelines.json")
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_intermixed_args()
    prompts = spread_prompts(arguments.prompts, arguments.count)
    vanilla = build("pipeline=vanilla", *arguments.overrides)
    answer(vanilla, prompts[:1], 8)
    expected = answer(vanilla, prompts, arguments.new_tokens)
    baseline = summarise(events_of(expected))
    report: dict[str, Any] = {
        "machine": vanilla.backend.describe(),
        "target": vanilla.target_name,
        "dtype": vanilla.dtype,
        "overrides": arguments.overrides,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "vanilla": baseline,
        "pipelines": {},
    }
    print(
        f"{report['machine']}; {report['target']}, {report['dtype']}; {len(prompts)} prompts x {arguments.new_tokens}"
    )
    print(f"vanilla: {baseline['tokens_per_second']:.1f} tokens/s")
    print(f"{'pipeline':24}{'ratio':>8}{'MAT':>8}{'accept':>8}{'draft':>8}{'verify':>8}{'hits':>8}  tokens equal")
    for name, options in PIPELINES.items():
        pipeline = build(f"pipeline={name}", *options, *arguments.overrides)
        # kernels compile here and not in what is timed
        answer(pipeline, prompts[:1], 8)
        answers = answer(pipeline, prompts, arguments.new_tokens)
        summary = summarise(events_of(answers))
        equal = sum(ours.tokens == theirs.tokens for ours, theirs in zip(answers, expected, strict=True))
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
        print(f"{name:24}" + "".join(f"{column:>8}" for column in columns) + f"  {equal}/{len(prompts)}", flush=True)
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
