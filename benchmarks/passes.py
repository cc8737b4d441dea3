"""What a pass costs on this processor, in units of reading all weights once: native kernels against packed products.

    OMP_WAIT_POLICY=ACTIVE python -m benchmarks.passes model.dtype=bfloat16 model.dtype=float32

For each dtype: a target pass over N nodes behind 256 tokens, split in products, attention and the rest, and a prefill
of 1,024 tokens. Both ways run turn by turn in one process, and so does reading: a sum over the memory of every linear
layer. Figures are medians over the median of reading in the same turns, since what a virtual machine can read
changes. The parts are timed apart; those that run as one call may take less together, so that the rest is negative.
Writes results/passes.json.

Legend: N rows, I inputs, M model dim.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.places import RESULTS
from spec_sdk.bench import timing
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, run_script, script_parser
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
RIVALS = {"packed": "backend.native=false", "native": "backend.native=true"}
TOKENS = [1 + 7 * i % 1000 for i in range(2048)]


def main() -> int:
    parser = script_parser(__doc__, output=RESULTS / "passes.json", overrides=["model.dtype=bfloat16"])
    parser.add_argument("--prefix", type=int, default=256, help="committed tokens before a pass")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prefill")
    parser.add_argument("--seconds", type=float, default=0.3, help="per comparison")
    arguments = parser.parse_intermixed_args()
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "unset"),
        "load_average": os.getloadavg()[0],
        "prefix": arguments.prefix,
    }
    for override in arguments.overrides:
        pipelines = {
            name: build(
                "pipeline=vanilla", "backend=cpu", "backend.compile=false", "model.weights=dense", option, override
            )
            for name, option in RIVALS.items()
        }
        report["machine"] = pipelines["native"].backend.describe()
        report["target"] = pipelines["native"].target_name
        report[pipelines["native"].dtype] = figures_of(pipelines, arguments)
    write_report(arguments.output, report)
    return 0


def figures_of(pipelines: dict[str, Pipeline], arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures of one dtype."""
    executors = {name: executor_of(pipeline) for name, pipeline in pipelines.items()}
    reading = summing(executors["native"])
    sessions = {name: pipeline.models.session(pipeline.models.target) for name, pipeline in pipelines.items()}
    for session in sessions.values():
        session.reserve(1, len(TOKENS))
        session.prefill(0, TOKENS[: arguments.prefix])
    best = min(seconds(reading) for _ in range(20))
    print(f"{pipelines['native'].dtype}: all weights are read in {1e3 * best:.2f} ms at best")
    passes: dict[int, Any] = {}
    for nodes in NODES:
        tree = TokenTree.chain(TOKENS[0], TOKENS[1:nodes])
        calls: dict[str, Callable[[], object]] = {"reading": reading}
        for name, executor in executors.items():
            calls[f"{name} pass"] = scoring(sessions[name], tree)
            calls[f"{name} products"] = products(executor, nodes)
            calls[f"{name} attention"] = attention(executor, nodes, arguments.prefix)
        taken = timing.median_seconds(calls, arguments.seconds, clock=time.perf_counter)
        passes[nodes] = {name: split(taken, name) for name in executors}
        passes[nodes]["reading_ms"] = round(1e3 * taken["reading"], 3)
        print(
            f"{nodes:2} nodes: "
            + "; ".join(
                f"{name} {of['pass']:.2f} ({of['products']:.2f} products, {of['attention']:.2f} attention, "
                f"{of['rest']:.2f} rest)"
                for name, of in passes[nodes].items()
                if name in executors
            )
            + f"; reading {passes[nodes]['reading_ms']:.2f} ms",
            flush=True,
        )
    prompt = TOKENS[: arguments.prompt]
    prefills = {"reading": reading, **{name: prefilling(pipelines[name], prompt) for name in executors}}
    taken = timing.median_seconds(prefills, 2 * arguments.seconds, clock=time.perf_counter)
    prefill = {name: round(taken[name] / taken["reading"], 2) for name in executors}
    print(f"prefill of {len(prompt)}: {prefill}")
    return {"best_reading_ms": round(1e3 * best, 3), "passes": passes, "prefill": {str(len(prompt)): prefill}}


def executor_of(pipeline: Pipeline) -> TorchExecutor:
    executor = pipeline.models.target.executor
    assert isinstance(executor, TorchExecutor)
    return executor


def summing(executor: TorchExecutor) -> Callable[[], object]:
    """A sum over the memory of every linear layer."""
    memory = [layer.weight_OI.view(torch.int64) for layer in executor.decoder.projections]

    def call() -> None:
        for weights in memory:
            weights.sum()

    return call


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def scoring(session: Session, tree: TokenTree) -> Callable[[], object]:
    return lambda: session.score([0], [tree])


def products(executor: TorchExecutor, nodes: int) -> Callable[[], object]:
    """All linear layers on ``nodes`` rows each."""
    layers = executor.decoder.projections
    rows = {size: torch.randn(nodes, size).to(executor.dtype) for size in {layer.inputs for layer in layers}}

    def call() -> None:
        for layer in layers:
            layer(rows[layer.inputs])

    return call


def attention(executor: TorchExecutor, nodes: int, prefix: int) -> Callable[[], object]:
    """The attention of all layers."""
    decoder, config = executor.decoder, executor.config
    cache = executor.new_cache()
    cache.reserve(1, prefix + nodes)
    rows = RequestRows.chain(0, prefix, TOKENS[:nodes])
    q_1BNHD = torch.randn(1, 1, nodes, config.num_heads, config.head_dim).to(executor.dtype)

    def call() -> None:
        of_pass = cache.of_pass(PassInputs.of("chain", [rows], executor.device))
        for layer in range(decoder.layers):
            executor.ops.cached_attention(q_1BNHD, of_pass, layer, decoder.kinds[layer].attention)

    return call


def prefilling(pipeline: Pipeline, prompt: list[int]) -> Callable[[], object]:
    session = pipeline.models.session(pipeline.models.target)
    session.reserve(1, len(prompt))

    def call() -> None:
        session.truncate(0, 0)
        session.prefill(0, prompt)

    return call


def split(taken: timing.Times, name: str) -> dict[str, float]:
    """A pass and its parts in units of reading."""
    whole, of_products, of_attention = (
        taken[f"{name} {part}"] / taken["reading"] for part in ("pass", "products", "attention")
    )
    parts = {"pass": whole, "products": of_products, "attention": of_attention}
    return {key: round(value, 3) for key, value in {**parts, "rest": whole - of_products - of_attention}.items()}


if __name__ == "__main__":
    sys.exit(run_script(main))
