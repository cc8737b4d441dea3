"""At a temperature above 0, should a tree's children be chosen or drawn?

    python benchmarks/sampled_trees.py --count 12 model.dtype=bfloat16

A chosen child is accepted with p(x), a drawn one with min(1, p(x)/q(x)). Same nodes per cycle, same prompts, same
process; tokens per target pass (MAT) and acceptance rate, drafting with the target itself and with its cut. Writes
results/sampled_trees.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.measuring import PROMPTS, RESULTS, answer, build, events_of, spread_prompts, write_report
from spec_sdk.metrics import summarise

DRAFTS = {"self": "HuggingFaceTB/SmolLM2-135M-Instruct", "cut": "cut"}
STATIC = "drafter.growth=static"
TREES: dict[str, list[str]] = {
    "chain": ["drafter.width=1"],
    "chosen: beam of 4": ["drafter.width=4", "drafter.growth=beam"],
    "drawn: 4 paths from the root": ["drafter.width=4", "drafter.growth=auto"],
    "drawn: 2, then 2 each": [STATIC, "drafter.widths=[2,2,1]"],
    "drawn with replacement: 4 paths": ["drafter.width=4", "drafter.children=with_replacement"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--count", type=int, default=12, help="prompts taken, evenly spread over the file")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--output", type=Path, default=RESULTS / "sampled_trees.json")
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_intermixed_args()
    prompts = spread_prompts(arguments.prompts, arguments.count, longest=1500)
    report: dict[str, Any] = {
        "temperature": arguments.temperature,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "overrides": arguments.overrides,
        "trees": {},
    }
    print(f"{'tree':36}{'draft':>8}{'MAT':>8}{'accept':>8}{'nodes':>8}")
    for name, options in TREES.items():
        for draft, reference in DRAFTS.items():
            common = [f"model.draft={reference}", f"sampling.temperature={arguments.temperature}", *arguments.overrides]
            pipeline = build("pipeline=easyspec_paper", "drafter.size=1", *common, *options)
            report["machine"] = pipeline.backend.describe()
            events = events_of(answer(pipeline, prompts, arguments.new_tokens))
            summary = summarise(events)
            nodes = [event["tree_nodes"] for event in events if event["event"] == "cycle"]
            entry = {
                "mean_accepted_tokens": summary["mean_accepted_tokens"],
                "acceptance_rate": summary["acceptance_rate"],
                "nodes_per_cycle": sum(nodes) / len(nodes),
            }
            report["trees"].setdefault(name, {})[draft] = entry
            print(f"{name:36}{draft:>8}" + "".join(f"{value:>8.2f}" for value in entry.values()), flush=True)
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
