"""Attention predictors at equal key budget, measured in both spaces, along plain decoding.

    python -m benchmarks.predictors --count 4 --new-tokens 24

Nothing is accepted (threshold 0), so that every predictor meets the same hidden states: those of plain decoding. The
hit rate at a threshold is the share of layers and tokens whose error lies below it. Writes results/predictors.json:
machine, dtype, and per predictor, budget and space the hit rates, the mean error and the mean error per layer.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from benchmarks.places import RESULTS
from spec_sdk.bench.answers import Prompt, answer, events_of, long_prompts, tokens_of
from spec_sdk.bench.conversations import spread
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.pipeline import Pipeline

PREDICTORS = ("attention_sink", "quest", "h2o")
SPACES = ("heads", "residual")
THRESHOLDS = (0.05, 0.1, 0.2)


def main() -> int:
    parser = script_parser(__doc__, count=4, new_tokens=24, output=RESULTS / "predictors.json")
    parser.add_argument("--shortest", type=int, default=600, help="tokens of the shortest prompt taken")
    parser.add_argument("--longest", type=int, default=1200, help="tokens of the longest prompt taken")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64], help="predictor.size: half the keys read")
    arguments = parser.parse_intermixed_args()
    first = build("pipeline=alspec", *arguments.overrides)
    fitting = long_prompts(first, arguments.prompts, arguments.shortest, arguments.longest)
    prompts = spread(fitting, arguments.count)
    report: dict[str, Any] = {
        **pipeline_facts(first),
        "overrides": arguments.overrides,
        "prompts": [{"task": prompt.task, "tokens": len(tokens_of(first, prompt))} for prompt in prompts],
        "new_tokens": arguments.new_tokens,
        "measured": "along plain decoding: nothing accepted, every layer and token counts once",
        "predictors": [],
    }
    print(
        f"{report['machine']}; {report['target']}, {report['dtype']}; {len(prompts)} prompts x {arguments.new_tokens}"
    )
    print(
        f"{'predictor':16}{'keys':>6}  {'space':10}" + "".join(f"{f'λ {x}':>8}" for x in THRESHOLDS) + f"{'error':>8}"
    )
    for size in arguments.sizes:
        for name in PREDICTORS:
            for space in SPACES:
                entry = _measure(first, name, size, space, prompts, arguments.new_tokens)
                report["predictors"].append(entry)
                rates = "".join(f"{rate:>8.1%}" for rate in entry["hit_rate"].values())
                print(f"{name:16}{2 * size:>6}  {space:10}{rates}{entry['mean_error']:>8.3f}", flush=True)
    write_report(arguments.output, report)
    return 0


def _measure(
    first: Pipeline, name: str, size: int, space: str, prompts: list[Prompt], new_tokens: int
) -> dict[str, Any]:
    """One predictor's errors, in one space: a list per layer, one entry per token."""
    chosen = build(
        "pipeline=alspec",
        f"predictor={name}",
        f"predictor.size={size}",
        f"attention_verifier.space={space}",
        "attention_verifier.threshold=0",
    )
    # the same loaded weights for all
    pipeline = dataclasses.replace(first, make_target_runner=chosen.make_target_runner)
    cycles = [event for event in events_of(answer(pipeline, prompts, new_tokens)) if event["event"] == "cycle"]
    layers = [list(layer) for layer in zip(*(cycle["attention"]["error"] for cycle in cycles), strict=True)]
    errors = [error for layer in layers for error in layer]
    return {
        "predictor": name,
        "keys": 2 * size,
        "space": space,
        "hit_rate": {str(x): sum(error < x for error in errors) / len(errors) for x in THRESHOLDS},
        "mean_error": sum(errors) / len(errors),
        "mean_error_per_layer": [sum(layer) / len(layer) for layer in layers],
        "measured": len(errors),
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
