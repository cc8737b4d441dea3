"""This tree against an earlier commit of the project: decoding speed and memory, in one run.

    python -m benchmarks.against_commit 904e470
    python -m benchmarks.against_commit 904e470 --overrides sampling.temperature=0.8 sampling.top_p=0.9
    python -m benchmarks.against_commit 904e470 --context 2000

The commit is checked out into a worktree of git's, and both run the same prompts through the same pipelines, by turns:
a process of the one, a process of the other, in every round in another order. What they share is the command line's
seam: composed YAML in, events out. Reported are decode tokens/s (prefill apart), as a ratio with its spread over the
rounds, whether the tokens are the same, and resident memory in the middle of a short and of a long context. Writes
results/against_commit.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support.earlier_commit import ROOT, answer_of, checked_out, git
from spec_sdk.bench.machine import hardware_name
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script, script_parser

PIPELINES = {
    "vanilla": ["pipeline=vanilla"],
    "prompt_lookup": ["pipeline=prompt_lookup"],
    "sd_chain": ["pipeline=sd_chain"],
    "easyspec_paper": ["pipeline=easyspec_chain", "drafter.width=4"],
    "specinfer_tree": ["pipeline=specinfer_tree"],
    "alspec": ["pipeline=alspec", "predictor.size=64"],
}
WORKER = r"""
import json, sys, time
from pathlib import Path
import torch
from omegaconf import OmegaConf
try:
    from spec_sdk.config.composing import compose_config
except ImportError:  # where it stood in earlier commits
    from spec_sdk.cli.composing import compose_config
from spec_sdk.pipeline import build_pipeline
from spec_sdk.prompts import encode
from spec_sdk.registry import Registry
try:
    from spec_sdk.search_path import register_search_path
except ImportError:  # earlier commits register their YAML with Hydra
    register_search_path = None
from spec_sdk.settings import Settings

asked = json.loads(sys.argv[1])
if register_search_path is not None:
    register_search_path()
config = OmegaConf.to_container(compose_config(asked["overrides"]), resolve=True)
pipeline = build_pipeline(Settings.from_config(config, Path("unused")), Registry.discover())

def resident_mib():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024

def answer(prompt, new_tokens):
    events = []
    began = time.perf_counter()
    stream = pipeline.stream(prompt, request_id=0, max_new_tokens=new_tokens, ignore_eos=True, emit=events.append)
    tokens = [token for step in stream for token in step]
    wall = time.perf_counter() - began
    prefill = next(event["seconds"] for event in events if event["event"] == "prefill")
    return tokens, wall, prefill

def held_mib(prompt):
    # resident memory while the answer to a prompt is under way
    stream = pipeline.stream(prompt, request_id=1, max_new_tokens=8, ignore_eos=True)
    return max(resident_mib() for _ in stream)

loaded = resident_mib()
prompts = [encode(pipeline.tokenizer, text, None) for text in asked["texts"]]
if asked["context"]:
    prompts = [(prompt * (1 + asked["context"] // len(prompt)))[: asked["context"]] for prompt in prompts]
answer(prompts[0][: len(prompts[0]) // 2], 4)
tokens, decode, prefills = [], 0.0, 0.0
for prompt in prompts:
    new, wall, prefill = answer(prompt, asked["new_tokens"])
    tokens.append(new)
    decode += wall - prefill
    prefills += prefill
found = {"tokens": tokens, "decode_s": decode, "prefill_s": prefills, "loaded_mib": loaded}
if asked["long"]:
    found["short_mib"] = held_mib(prompts[0])
    found["long_mib"] = held_mib([5 + 7 * i % 4000 for i in range(asked["long"])])
found["threads"] = torch.get_num_threads()
print(json.dumps(found))
"""


def main() -> int:
    parser = script_parser(__doc__, count=4, new_tokens=48, output=RESULTS / "against_commit.json", overrides=None)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES), choices=list(PIPELINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--overrides", nargs="+", default=[], help="options of all pipelines, of both trees")
    parser.add_argument("--context", type=int, default=0, help="tokens that prompts are repeated to; 0: as they are")
    parser.add_argument("--long", type=int, default=4000, help="tokens of a long context, for its memory; 0: none")
    options = parser.parse_args()
    lines = [json.loads(line)["turns"][0] for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    texts = [line for line in lines if len(line) <= 1500]
    texts = texts[:: max(1, len(texts) // options.count)][: options.count]
    with checked_out(options.commit) as earlier:
        report = compare({"earlier": earlier, "now": ROOT}, texts, options)
    write_report(options.output, report)
    return 0


def compare(trees: dict[str, Path], texts: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All pipelines, by turns."""
    report: dict[str, Any] = {
        "machine": hardware_name(torch.device("cpu")),
        "earlier": git("rev-parse", "--short", options.commit),
        "now": git("rev-parse", "--short", "HEAD"),
        "dtype": options.dtype,
        "overrides": options.overrides,
        "new_tokens": options.new_tokens,
        "prompts": len(texts),
        "context": options.context,
        "rounds": options.rounds,
        "pipelines": {},
    }
    for name in options.pipelines:
        runs: dict[str, list[dict[str, Any]]] = {tree: [] for tree in trees}
        for turn in range(options.rounds):
            for tree in (*trees, *reversed(trees))[turn % 2 * 2 :][:2]:
                asked = {
                    "overrides": [*PIPELINES[name], f"model.dtype={options.dtype}", *options.overrides],
                    "texts": list(texts),
                    "new_tokens": options.new_tokens,
                    "context": options.context,
                    "long": options.long if turn == 0 and name == "vanilla" else 0,
                }
                runs[tree].append(run(trees[tree], asked))
        report["pipelines"][name] = row = figures(runs)
        print(
            f"{name:16} decode {row['ratio']:.3f} × ({row['least']:.3f} … {row['largest']:.3f}), prefill "
            f"{row['prefill_ratio']:.3f} ×, tokens {'equal' if row['tokens_equal'] else 'DIFFER'}",
            flush=True,
        )
    return report


def figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Speed now over speed then: the median of the rounds' ratios, and their spread."""
    pairs = list(zip(runs["earlier"], runs["now"], strict=True))
    ratios = [then["decode_s"] / now["decode_s"] for then, now in pairs]
    tokens = sum(map(len, runs["now"][0]["tokens"]))
    memory = {
        tree: {key: round(own[0][key]) for key in ("loaded_mib", "short_mib", "long_mib") if key in own[0]}
        for tree, own in runs.items()
    }
    return {
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "largest": max(ratios),
        "prefill_ratio": statistics.median(then["prefill_s"] / now["prefill_s"] for then, now in pairs),
        "tokens_per_s": {
            tree: statistics.median(tokens / one["decode_s"] for one in own) for tree, own in runs.items()
        },
        "tokens_equal": all(then["tokens"] == now["tokens"] for then, now in pairs),
        "memory": memory,
    }


def run(tree: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """One process of one tree. Threads wait as that tree has them wait."""
    return answer_of(tree, ["-c", WORKER, json.dumps(asked)])


if __name__ == "__main__":
    sys.exit(run_script(main))
