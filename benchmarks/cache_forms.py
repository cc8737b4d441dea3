"""What the target's passes take with its KV cache in bfloat16, beside one in the model's dtype.

    python -m benchmarks.cache_forms

Passes of some nodes behind some tokens, and prompts, in turn in one process, the target as it is loaded by default.
Then how far both are from the same weights with cache and rows exact: KL divergence of the next token's distribution,
mean over the positions of prompts in nats, and the prompts' perplexity. Writes results/cache_forms.json.

Legend: N tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any

import torch

from benchmarks.passes import TOKENS, prefilling, scoring
from benchmarks.places import RESULTS
from benchmarks.quantised import logits
from spec_sdk.bench import timing
from spec_sdk.bench.answers import spread_prompts, tokens_of
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

FORMS = ("exact", "bfloat16")


def main() -> int:
    parser = script_parser(__doc__, count=24, output=RESULTS / "cache_forms.json")
    parser.add_argument("--prefixes", type=int, nargs="+", default=[64, 256, 1024], help="committed tokens")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64], help="of a pass")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1500], help="tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=1.5, help="per comparison, three rounds at least")
    arguments = parser.parse_intermixed_args()
    pipelines = {form: build("pipeline=vanilla", *arguments.overrides, f"model.kv_cache={form}") for form in FORMS}
    sessions = {form: pipeline.models.session(pipeline.models.target) for form, pipeline in pipelines.items()}
    report: dict[str, Any] = {"load_average": os.getloadavg()[0], **pipeline_facts(pipelines["exact"]), "passes": {}}
    for prefix in arguments.prefixes:
        for session in sessions.values():
            session.truncate(0, 0)
            session.reserve(1, prefix + max(arguments.nodes))
            session.prefill(0, TOKENS[:prefix])
        for nodes in arguments.nodes:
            tree = TokenTree.chain(TOKENS[0], TOKENS[1:nodes])
            calls = {form: scoring(session, tree) for form, session in sessions.items()}
            taken = timing.median_seconds(calls, arguments.seconds)
            report["passes"][f"{nodes} nodes behind {prefix} tokens"] = compared(taken)
            print(f"{nodes} nodes behind {prefix} tokens: {compared(taken)}", flush=True)
    report["prompts"] = {}
    for length in arguments.lengths:
        prompts = {form: prefilling(pipeline, TOKENS[:length]) for form, pipeline in pipelines.items()}
        taken = timing.median_seconds(prompts, 2 * arguments.seconds)
        report["prompts"][f"{length} tokens"] = compared(taken)
        print(f"a prompt of {length} tokens: {compared(taken)}", flush=True)
    report["bytes_of_a_token"] = {
        form: session.cache.nbytes // (session.cache.slots * session.cache.capacity)  # type: ignore[attr-defined]
        for form, session in sessions.items()
    }
    report["distance"] = distances(pipelines, arguments)
    print(report["distance"])
    write_report(arguments.output, report)
    return 0


def distances(pipelines: dict[str, Pipeline], arguments: argparse.Namespace) -> dict[str, Any]:
    """Of each form, beside the reference."""
    reference = build("pipeline=vanilla", *arguments.overrides, "backend.activations=exact", "model.kv_cache=exact")
    of = {"reference": reference, **pipelines}
    prompts = [tokens_of(reference, text) for text in spread_prompts(arguments.prompts, arguments.count, 2000)]
    positions, divergence, surprise = 0, dict.fromkeys(of, 0.0), dict.fromkeys(of, 0.0)
    for prompt in prompts:
        next_N1 = torch.tensor(prompt[1:])[:, None]
        log_NV = {name: logits(pipeline, prompt[:-1]).double().log_softmax(-1) for name, pipeline in of.items()}
        positions += len(next_N1)
        for name, ours_NV in log_NV.items():
            expected_NV = log_NV["reference"]
            divergence[name] += float((expected_NV.exp() * (expected_NV - ours_NV)).sum())
            surprise[name] -= float(ours_NV.gather(1, next_N1).sum())
    return {
        "prompts": len(prompts),
        "positions": positions,
        "mean_kl_divergence": {name: round(sum_ / positions, 5) for name, sum_ in divergence.items()},
        "perplexity": {name: round(math.exp(sum_ / positions), 3) for name, sum_ in surprise.items()},
    }


def compared(taken: dict[str, float]) -> dict[str, float]:
    """Milliseconds of both, and the ratio."""
    return {
        **{f"{form}_ms": round(1e3 * taken[form], 2) for form in FORMS},
        "bfloat16_over_exact": round(taken["bfloat16"] / taken["exact"], 2),
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
