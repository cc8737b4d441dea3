"""What a GGUF file in K-quants decodes at in its few bits, beside the same weights dense, and beside llama.cpp.

    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python
    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python --shape gemma3_1b --mixes Q4_0 Q8_0
    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python --shape qwen3_30b_a3b --mixes Q4_0 Q4_K_M
    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python --shape gpt_oss_20b --mixes MXFP4
    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python --shape qwen3_5_0_8b --mixes Q4_K_M
    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python --shape glm_4_7_flash --mixes Q4_K_M
    python -m benchmarks.gguf_mixes --llama-python /path/to/env/bin/python --shape gemma4_e2b --mixes Q4_K_M

For each mix of quantisations a model with random weights is written; plain decoding behind a prompt of 64 tokens,
by turns: in few bits, dense in bfloat16, and llama-cpp-python of the same file, if ``--llama-python`` has one. Also a
prompt of 512 tokens up to the first one behind it, and passes over N nodes in units of one over a single node. Figures
are medians. Writes results/gguf_mixes.json, of another
shape results/gguf_mixes-SHAPE.json.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.passes import TOKENS, scoring
from benchmarks.places import RESULTS
from benchmarks.support.random_gguf import MIXES, write_random_gguf
from benchmarks.support.shapes import SHAPES
from spec_sdk.bench import timing
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.peers.commands import llama_command
from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.worker import Worker, peer_worker
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

PROMPT = TOKENS[:64]
LONG = TOKENS[:512]
NODES = (2, 4, 8)
USUAL = "llama_1b"
WAYS = {"few bits": (), "dense": ("model.weights=dense", "model.dtype=bfloat16")}


def main() -> int:
    parser = script_parser(__doc__, new_tokens=48, output=None, overrides=None)
    add_output(parser)
    parser.add_argument("--shape", choices=list(SHAPES), default=USUAL)
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=["Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per comparison of passes")
    parser.add_argument("--llama-python", help="a Python with llama-cpp-python")
    arguments = parser.parse_args()
    shape, suffix = SHAPES[arguments.shape], "" if arguments.shape == USUAL else f"-{arguments.shape}"
    report: dict[str, Any] = {"prompt_tokens": len(PROMPT), "new_tokens": arguments.new_tokens, "mixes": {}}
    for mix in arguments.mixes:
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
            file = Path(directory) / f"{mix}.gguf"
            write_random_gguf(file, mix, shape)
            # what it is converted to would stay in the cache, of a file that nobody has
            stack.callback(shutil.rmtree, open_checkpoint(str(file)).directory)
            pipelines = {way: build("pipeline=vanilla", f"model.target={file}", *given) for way, given in WAYS.items()}
            report |= {**pipeline_facts(pipelines["few bits"]), "target": f"{shape.title}, random weights"}
            llama = None
            if arguments.llama_python:
                context = max(len(PROMPT) + arguments.new_tokens, len(LONG) + 2)
                llama = stack.enter_context(peer_worker(llama_command(arguments.llama_python, file, context)))
                report["llama_cpp"] = llama.facts
            found = decoding(pipelines, llama, arguments.new_tokens, arguments.rounds)
            found["prompt_s"] = prompt_seconds(pipelines, llama, arguments.rounds)
            found["mib"] = {way: round((of.memory["target_weights"] or 0) / 2**20) for way, of in pipelines.items()}
            found["mib"]["file"] = file.stat().st_size >> 20
            found["passes"] = passes(pipelines["few bits"], arguments.seconds)
            report["mixes"][mix] = found
            print(f"{mix}: {found}", flush=True)
    write_report(arguments.output or RESULTS / f"gguf_mixes{suffix}.json", report)
    return 0


def decoding(pipelines: dict[str, Pipeline], llama: Worker | None, new_tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second behind the prompt, its first token apart; all take turns."""
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for way, pipeline in pipelines.items():
            seconds.setdefault(way, []).append(decode_s(pipeline, new_tokens))
        if llama is not None:
            seconds.setdefault("llama.cpp", []).append(llama.ask(Request(PROMPT, new_tokens)).decode_s)
    speeds = {way: (new_tokens - 1) / statistics.median(taken) for way, taken in seconds.items()}
    return {
        "tokens_per_s": {way: round(speed, 2) for way, speed in speeds.items()},
        "ratio": {way: round(speeds["few bits"] / speed, 2) for way, speed in speeds.items() if way != "few bits"},
    }


def decode_s(pipeline: Pipeline, new_tokens: int) -> float:
    """Of all tokens but the first."""
    arrived = [time.perf_counter() for _ in pipeline.stream(list(PROMPT), max_new_tokens=new_tokens, ignore_eos=True)]
    return arrived[-1] - arrived[0]


def prompt_seconds(pipelines: dict[str, Pipeline], llama: Worker | None, rounds: int) -> dict[str, float]:
    """A prompt's seconds up to its first token, each time of another order of tokens; all take turns."""
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        prompt = random.Random(number).sample(LONG, len(LONG))
        for way, pipeline in pipelines.items():
            seconds.setdefault(way, []).append(first_s(pipeline, prompt))
        if llama is not None:
            seconds.setdefault("llama.cpp", []).append(llama.ask(Request(prompt, 2)).first_s)
    return {way: round(statistics.median(taken), 3) for way, taken in seconds.items()}


def first_s(pipeline: Pipeline, prompt: list[int]) -> float:
    began = time.perf_counter()
    for _ in pipeline.stream(list(prompt), max_new_tokens=1, ignore_eos=True):
        break
    return time.perf_counter() - began


def passes(pipeline: Pipeline, seconds: float) -> dict[str, float]:
    """By the number of nodes what a pass takes in units of one over a single node."""
    session = pipeline.models.session(pipeline.models.target)
    session.reserve(1, len(TOKENS))
    session.prefill(0, TOKENS[:256])
    found = {}
    for nodes in NODES:
        trees = {n: TokenTree.chain(TOKENS[0], TOKENS[1:n]) for n in (1, nodes)}
        calls = {str(n): scoring(session, tree) for n, tree in trees.items()}
        taken = timing.median_seconds(calls, seconds, clock=time.perf_counter)
        found[str(nodes)] = round(taken[str(nodes)] / taken["1"], 2)
    return found


if __name__ == "__main__":
    sys.exit(run_script(main))
