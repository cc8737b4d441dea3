"""A target in few bits beside the same weights dense: logits, greedy choices, memory.

    python -m benchmarks.quantised model.target=smollm2-135m-instruct
    python -m benchmarks.quantised model.target=HuggingFaceTB/SmolLM2-135M-Instruct --weights int8

The first keeps a GGUF file in its own bits: what differs is the order of sums alone. The second rounds the weights, and
says what that costs. The dense model answers every prompt greedily, and both are shown prompt and answer in one pass.
Memory is that of a process of its own for each, after one answer. Writes results/quantised.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import psutil
import torch

from benchmarks.places import RESULTS
from spec_sdk.bench.answers import Prompt, spread_prompts, tokens_of
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.model.session import Session
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree


def main() -> int:
    parser = script_parser(__doc__, count=40, new_tokens=32, output=RESULTS / "quantised.json")
    parser.add_argument("--weights", default="int4", help="model.weights of the target in few bits")
    parser.add_argument("--longest", type=int, default=2000, help="characters of a prompt")
    parser.add_argument("--memory-of", help="only answer one prompt with these weights, and print the memory taken")
    arguments = parser.parse_intermixed_args()
    if arguments.memory_of:
        print(json.dumps(memory_of(loaded(arguments.memory_of, arguments), arguments.new_tokens)))
        return 0
    dense, kept = loaded("dense", arguments), loaded(arguments.weights, arguments)
    prompts = [tokens_of(dense, text) for text in spread_prompts(arguments.prompts, arguments.count, arguments.longest)]
    report: dict[str, Any] = {
        **pipeline_facts(dense),
        "weights": arguments.weights,
        "logits": compared(dense, kept, prompts, arguments.new_tokens),
        "memory": {weights: in_own_process(weights) for weights in ("dense", arguments.weights)},
    }
    print(json.dumps(report["logits"]), json.dumps(report["memory"]), sep="\n")
    write_report(arguments.output, report)
    return 0


def loaded(weights: str, arguments: argparse.Namespace) -> Pipeline:
    """Plain decoding with the target in these bits."""
    return build("pipeline=vanilla", *arguments.overrides, f"model.weights={weights}")


def compared(dense: Pipeline, kept: Pipeline, prompts: Sequence[Sequence[int]], new_tokens: int) -> dict[str, Any]:
    """Both models' logits at every token of prompts and answers, but the last."""
    largest = worst = 0.0
    squares = rows = answered = same = same_answered = 0.0
    for prompt in prompts:
        answer = [token for tokens in dense.stream(prompt, max_new_tokens=new_tokens) for token in tokens]
        text = [*prompt, *answer][:-1]
        expected_NV, ours_NV = logits(dense, text), logits(kept, text)
        difference_NV = (ours_NV - expected_NV).abs()
        agrees_N = (ours_NV.argmax(-1) == expected_NV.argmax(-1)).float()
        largest, worst = max(largest, float(expected_NV.abs().max())), max(worst, float(difference_NV.max()))
        squares += float(difference_NV.square().mean(-1).sum())
        rows, same = rows + len(text), same + float(agrees_N.sum())
        answered, same_answered = answered + len(answer), same_answered + float(agrees_N[-len(answer) :].sum())
    return {
        "prompts": len(prompts),
        "positions": int(rows),
        "largest_logit": largest,
        "largest_difference": worst,
        "root_mean_square_difference": (squares / rows) ** 0.5,
        "greedy_agreement": same / rows,
        "greedy_agreement_in_answers": same_answered / answered,
    }


def logits(pipeline: Pipeline, tokens: Sequence[int]) -> torch.Tensor:
    """Float32 [N, V], in one pass."""
    session = Session(pipeline.models.target.executor)
    return session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV.float()


def memory_of(pipeline: Pipeline, new_tokens: int) -> dict[str, int | None]:
    """Bytes: those of weights and cache by count, and what is resident in this process."""
    for _ in pipeline.stream(tokens_of(pipeline, Prompt("Why is the sky blue?", "all")), max_new_tokens=new_tokens):
        pass
    return {**pipeline.memory, "resident": psutil.Process().memory_info().rss}


def in_own_process(weights: str) -> dict[str, Any]:
    """:func:`memory_of` in a new process with the same options."""
    command = [sys.executable, "-m", "benchmarks.quantised", *sys.argv[1:], "--memory-of", weights]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    sys.exit(run_script(main))
