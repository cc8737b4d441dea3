"""Policies against plain decoding: on Spec-Bench, and on random tokens, where nothing that is drafted is right.

    python benchmarks/adaptive.py --count 4 --new-tokens 64 --repeats 2

Every prompt is answered by all rivals in turn (plain decoding, fixed, heuristic, adaptive), in the opposite order in
every other turn, so that a load from elsewhere meets all of them. A ratio is the time of plain decoding over the
rival's, above 1 is faster: ``decode`` of decoding alone, ``total`` with prefill, which holds the drafter's own.
``--shapes`` adds fixed trees to compare with; ``mean_nodes`` is of all cycles, plain steps included. ``pooled`` divides
sums over all answers; ``median`` is over the pairs of answers to one prompt in one turn. Each rival keeps its policy
over all prompts of a kind, as a run does. Writes results/adaptive.json with the machine's name.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import PROMPTS, RESULTS, build, spread_prompts, write_report
from spec_sdk.contracts import Policy
from spec_sdk.metrics import request_metrics
from spec_sdk.pipeline import Pipeline
from spec_sdk.policy import (
    AdaptiveConfig,
    AdaptivePolicy,
    FixedConfig,
    FixedPolicy,
    HeuristicConfig,
    HeuristicPolicy,
)

FIXED_DEPTH = 5
VANILLA = "vanilla"


def rivals_of(pipeline: Pipeline, arguments: argparse.Namespace) -> dict[str, Pipeline]:
    """Plain decoding, and the pipeline with each policy; they share models."""
    policies: dict[str, Policy] = {
        f"fixed({FIXED_DEPTH})": FixedPolicy(FixedConfig(FIXED_DEPTH)),
        "heuristic": HeuristicPolicy(HeuristicConfig()),
        "adaptive": AdaptivePolicy(AdaptiveConfig(costs=arguments.costs)),
    }
    for depth, width in arguments.shapes:
        policies[f"fixed({depth}x{width})"] = FixedPolicy(FixedConfig(depth, 1 + depth * width))
    speculating = {name: dataclasses.replace(pipeline, policy=policy) for name, policy in policies.items()}
    return {VANILLA: pipeline.vanilla(), **speculating}


def chat_prompts(pipeline: Pipeline, arguments: argparse.Namespace) -> list[list[int]]:
    """Spec-Bench, evenly spread over its tasks."""
    prompts = spread_prompts(arguments.prompts, arguments.count, arguments.longest)
    return [pipeline.tokenizer.chat([{"role": "user", "content": prompt.text}]) for prompt in prompts]


def random_prompts(pipeline: Pipeline, arguments: argparse.Namespace) -> list[list[int]]:
    """Tokens drawn evenly from the vocabulary."""
    rng = torch.Generator().manual_seed(7)
    vocabulary = pipeline.models.target.executor.vocabulary
    return torch.randint(vocabulary, (arguments.count, arguments.random_length), generator=rng).tolist()


def answer(pipeline: Pipeline, prompt: list[int], index: int, new_tokens: int, ignore_eos: bool) -> dict[str, Any]:
    """Metrics of one answer."""
    events: list[dict[str, Any]] = []
    stream = pipeline.stream(
        prompt, request_id=index, max_new_tokens=new_tokens, ignore_eos=ignore_eos, emit=events.append
    )
    for _ in stream:
        pass
    nodes = sum(event["tree_nodes"] for event in events if event["event"] == "cycle")
    return {**request_metrics(events), "nodes": nodes}


def compare(
    pipeline: Pipeline, prompts: list[list[int]], arguments: argparse.Namespace, ignore_eos: bool
) -> dict[str, Any]:
    """Every rival's ratios over ``prompts``."""
    rivals = rivals_of(pipeline, arguments)
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in rivals}
    for repeat in range(arguments.repeats):
        for i, prompt in enumerate(prompts):
            names = list(rivals) if (repeat + i) % 2 == 0 else list(reversed(rivals))
            for name in names:
                answers[name].append(answer(rivals[name], prompt, i, arguments.new_tokens, ignore_eos))
    return {name: summary(mine, answers[VANILLA]) for name, mine in answers.items()}


def summary(mine: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios, and what they come from."""
    drafted, accepted = sum(m["drafted"] for m in mine), sum(m["accepted"] for m in mine)
    return {
        "decode": ratios([m["decode_s"] for m in mine], [p["decode_s"] for p in plain]),
        "total": ratios(
            [m["decode_s"] + m["prefill_s"] for m in mine], [p["decode_s"] + p["prefill_s"] for p in plain]
        ),
        "tokens_per_second": sum(m["new_tokens"] for m in mine) / sum(m["decode_s"] for m in mine),
        "mean_accepted_tokens": sum(m["new_tokens"] for m in mine) / sum(m["steps"] for m in mine),
        "acceptance_rate": accepted / drafted if drafted else None,
        "drafted": drafted,
        "mean_nodes": sum(m["nodes"] for m in mine) / sum(m["steps"] for m in mine),
        "new_tokens": sum(m["new_tokens"] for m in mine),
        "answers": len(mine),
        "answers_with_equal_tokens": sum(m["token_ids"] == p["token_ids"] for m, p in zip(mine, plain, strict=True)),
    }


def shape_of(text: str) -> tuple[int, int]:
    """``5x4``: five levels of four nodes."""
    depth, width = text.split("x")
    return int(depth), int(width)


def ratios(mine: list[float], plain: list[float]) -> dict[str, float]:
    """``plain`` over ``mine``, both in seconds."""
    pairs = [p / m for m, p in zip(mine, plain, strict=True)]
    return {"pooled": sum(plain) / sum(mine), "median": statistics.median(pairs), "least": min(pairs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--count", type=int, default=6, help="prompts of each kind")
    parser.add_argument("--longest", type=int, default=1500, help="characters of the longest Spec-Bench prompt taken")
    parser.add_argument("--random-length", type=int, default=48, help="tokens of a random prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pipelines", nargs="+", default=["prompt_lookup", "sd_chain", "easyspec_paper"])
    parser.add_argument("--shapes", type=shape_of, nargs="*", default=[], help="fixed trees: 5x4, 5 levels of 4 nodes")
    parser.add_argument("--costs", choices=["auto", "measure", "learn"], default="measure", help="of adaptive")
    parser.add_argument("--output", type=Path, default=RESULTS / "adaptive.json")
    parser.add_argument("--override", action="append", default=[], help="an option of spec_sdk; may be repeated")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"pipelines": {}}
    for name in arguments.pipelines:
        pipeline = build(f"pipeline={name}", *arguments.override)
        report |= {
            "machine": pipeline.backend.describe(),
            "torch_threads": torch.get_num_threads(),
            "target": pipeline.target_name,
            "dtype": pipeline.dtype,
            "overrides": arguments.override,
            "prompts": arguments.count,
            "repeats": arguments.repeats,
            "new_tokens": arguments.new_tokens,
        }
        for rival in rivals_of(pipeline, arguments).values():
            answer(rival, random_prompts(pipeline, arguments)[0][:8], 0, 4, True)
        entry: dict[str, Any] = {"draft": pipeline.draft_name}
        report["pipelines"][name] = entry
        for kind, prompts, ignore_eos in (
            ("spec_bench", chat_prompts(pipeline, arguments), False),
            ("random", random_prompts(pipeline, arguments), True),
        ):
            entry[kind] = compare(pipeline, prompts, arguments, ignore_eos)
            print(f"{name}, {kind}:  ratio to plain decoding (decode pooled, median, least; total pooled, median)")
            for rival, row in entry[kind].items():
                decode, total = row["decode"], row["total"]
                print(
                    f"  {rival:12} {decode['pooled']:6.2f} {decode['median']:6.2f} {decode['least']:6.2f}  "
                    f"{total['pooled']:6.2f} {total['median']:6.2f}   MAT {row['mean_accepted_tokens']:.2f}  "
                    f"{row['mean_nodes']:.1f} nodes  "
                    f"{row['answers_with_equal_tokens']}/{row['answers']} equal",
                    flush=True,
                )
        write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
