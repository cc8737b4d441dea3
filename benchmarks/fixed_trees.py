"""New tokens per target pass of drafters without a model, with trees of fixed size: figures that hang on no clock.

    python -m benchmarks.fixed_trees --prompts spec_bench.jsonl --datastore others.safetensors model.dtype=bfloat16

Answers the first turns of the prompts that `task=bench` takes, all at once, greedily and at temperature 1, and writes
results/fixed_trees.json: tokens, passes, their ratio (MAT). `--datastore` is best one of other prompts' answers:
benchmarks/other_answers.py. A case that the file has is not measured again. How fast they are is for `task=bench`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.places import RESULTS
from spec_sdk import Engine
from spec_sdk.bench.conversations import read_conversations
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script, script_parser

FIXED = ("policy=fixed", "policy.depth=7", "policy.max_nodes=8")
CASES: dict[str, tuple[str, ...]] = {
    "suffix": ("suffix", *FIXED),
    "suffix, datastore": ("suffix", *FIXED),
    "prompt_lookup": ("prompt_lookup", "policy.depth=7"),
    "lookahead": ("lookahead",),
    "lookahead, window alone": ("lookahead", "drafter.pool_from_text=false"),
    "lookahead, W = G = 2, N = 3": ("lookahead", "drafter.window=2", "drafter.ngram=3", "drafter.guesses=2"),
}


def measured(case: str, temperature: float, texts: list[str], options: Any) -> dict[str, Any]:
    pipeline, *overrides = CASES[case]
    if case.endswith("datastore"):
        overrides.append(f"drafter.datastore={options.datastore}")
    engine = Engine.from_pipeline(pipeline, overrides=[*options.overrides, *overrides])
    answers = engine.generate(texts, max_new_tokens=options.new_tokens, temperature=temperature, seed=0)
    tokens = sum(len(answer.tokens) for answer in answers)
    passes = sum(round(len(answer.tokens) / answer.metrics["mean_accepted_tokens"]) for answer in answers)
    return {"case": case, "temperature": temperature, "tokens": tokens, "passes": passes, "mat": tokens / passes}


def main() -> int:
    parser = script_parser(__doc__, count=12, new_tokens=64, output=RESULTS / "fixed_trees.json")
    parser.add_argument("--datastore", type=Path, help="what the case with a datastore looks up; without it none")
    options = parser.parse_intermixed_args()
    conversations = read_conversations(str(options.prompts), None, options.count).conversations
    texts = [conversation.turns[0] for conversation in conversations]
    cases: list[dict[str, Any]] = []
    if options.output.exists():
        cases = json.loads(options.output.read_text(encoding="utf-8"))["cases"]
    known = {(case["case"], case["temperature"]) for case in cases}
    for temperature in (0.0, 1.0):
        for case in CASES:
            without = case.endswith("datastore") and options.datastore is None
            if (case, temperature) in known or without:
                continue
            cases.append(found := measured(case, temperature, texts, options))
            print(found, flush=True)
            facts = {"prompts": len(texts), "new_tokens": options.new_tokens, "options": options.overrides}
            write_report(options.output, {**facts, "cases": cases})
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
