"""Several CPU processes against one of them, same prompts, one thread each, as a ratio.

    python -m benchmarks.ranks --processes 2 --count 2 --new-tokens 32

The leader process measures both in turn: a pipeline of its own, and the same one spread over all processes. Writes
results/ranks.json: machine, and per pipeline the ratio of tokens per second, of every round and its median, and whether
the tokens are the same.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spec_sdk.bench.reports import write_report
from spec_sdk.config.composing import settings_for
from spec_sdk.metrics import summarise
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.prompts import read_prompt_texts
from spec_sdk.registry import Registry

ONE_THREAD = ["backend.threads=1"]


def build(name: str, overrides: list[str]) -> Pipeline:
    return build_pipeline(settings_for([f"pipeline={name}", *overrides]), Registry.discover())


def measure(pipeline: Pipeline, prompts: list[list[int]], new_tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Summary and tokens of all prompts; on a rank that follows, its own view of them."""
    events: list[dict[str, Any]] = []
    answers = []
    for i, prompt in enumerate(prompts):
        stream = pipeline.stream(prompt, request_id=i, max_new_tokens=new_tokens, ignore_eos=True, emit=events.append)
        answers.append([token for tokens in stream for token in tokens])
    return summarise(events), answers


def start_others(count: int, program: Sequence[str] = (sys.argv[0],)) -> list[subprocess.Popen[bytes]]:
    """Become rank 0 of ``count`` and start the rest of them, with this command line's arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, *program, *sys.argv[1:]]
    return [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(1, count)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--prompts", default="spec_bench_sample", help="JSONL of prompts, or spec_bench_sample")
    parser.add_argument("--count", type=int, default=2, help="prompts taken, evenly spread over the file")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pipelines", nargs="*", default=["vanilla", "easyspec_paper"])
    parser.add_argument("--output", default="benchmarks/results/ranks.json")
    parser.add_argument("--overrides", nargs="*", default=[], help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_args()
    leads = os.environ.get("RANK", "0") == "0"
    alone = (
        {name: build(name, ["backend=cpu", *ONE_THREAD, *arguments.overrides]) for name in arguments.pipelines}
        if leads
        else {}
    )
    others = start_others(arguments.processes) if leads else []
    spread = {
        name: build(name, ["backend=accelerate", *ONE_THREAD, *arguments.overrides]) for name in arguments.pipelines
    }
    first = spread[arguments.pipelines[0]]
    texts = read_prompt_texts(arguments.prompts)
    texts = texts[:: max(1, len(texts) // arguments.count)][: arguments.count]
    prompts = [first.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    report: dict[str, Any] = {
        "machine": first.backend.describe(),
        "cpus": os.cpu_count(),
        "target": first.target_name,
        "dtype": first.dtype,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "pipelines": {},
    }
    for name, pipeline in spread.items():
        measure(pipeline, prompts[:1], 4)
        rounds = []
        for _ in range(arguments.rounds):
            one, expected = measure(alone[name], prompts, arguments.new_tokens) if leads else ({}, [])
            # the others wait here while the leader is on its own
            pipeline.ranks.decide(lambda: None)
            many, tokens = measure(pipeline, prompts, arguments.new_tokens)
            if leads:
                speedup = many["tokens_per_second"] / one["tokens_per_second"]
                rounds.append({"speedup": speedup, "one": one, "spread": many, "same_tokens": tokens == expected})
        if leads:
            median = statistics.median(each["speedup"] for each in rounds)
            same = all(each["same_tokens"] for each in rounds)
            report["pipelines"][name] = {"speedup": median, "same_tokens": same, "rounds": rounds}
            each = ", ".join(f"{entry['speedup']:.2f}" for entry in rounds)
            print(f"{name:24} {median:.2f}x one process ({each}), same tokens: {same}", flush=True)
    if leads:
        # what else ran here: processes that wait for each other suffer from it more than one alone
        report["load_average_1min"] = os.getloadavg()[0]
        write_report(Path(arguments.output), report)
    first.ranks.close()
    return max((other.wait() for other in others), default=0)


if __name__ == "__main__":
    sys.exit(main())
