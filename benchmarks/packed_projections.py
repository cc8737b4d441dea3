"""Packed linear layers of the CPU backend against torch's own, and what they do to whole target passes.

    python -m benchmarks.packed_projections

Every linear layer of the default model, each on fresh weights (as many copies as fill the caches), and whole passes of
the model over N nodes; both turn by turn. Also how far the logits of a node depend on how many nodes are scored with
it: for the first node of a pass, the largest difference from a pass over that node alone. Writes
results/packed_projections.json.

Legend: I inputs, O outputs, N rows.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from spec_sdk.bench import timing
from spec_sdk.bench.answers import spread_prompts
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import PROMPTS, build, pipeline_facts, run_script
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.pipeline import Pipeline
from spec_sdk.prompts import encode
from spec_sdk.tree import TokenTree
from spec_sdk_backends.cpu import CpuOps

ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
NODES = (1, 2, 4, 8, 16, 32)
BEYOND_CACHES = 64 * 2**20
"""Bytes of weights that no processor cache keeps from one call to the next."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--prefix", type=int, default=256, help="committed tokens before a pass")
    parser.add_argument("--seconds", type=float, default=1.0, help="per comparison")
    add_output(parser, RESULTS / "packed_projections.json")
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_intermixed_args()
    packed = build(
        "pipeline=vanilla", "backend=cpu", "backend.native=false", "model.weights=dense", *arguments.overrides
    )
    plain = build(
        "pipeline=vanilla", "backend=cpu", "backend.pack_weights=false", "model.weights=dense", *arguments.overrides
    )
    report: dict[str, Any] = {
        **pipeline_facts(packed),
        "linear_ms": linear_layers(packed, arguments.seconds),
        "prefix": arguments.prefix,
        "pass_ms": passes(plain, packed, arguments),
    }
    write_report(arguments.output, report)
    return 0


def linear_layers(pipeline: Pipeline, seconds: float) -> dict[str, Any]:
    """Shape → rows → milliseconds of a plain and a packed layer."""
    executor = pipeline.models.target.executor
    assert isinstance(executor, TorchExecutor)
    decoder = executor.decoder
    block = decoder.blocks[0]
    gate_up, down = block.mlp.projections
    layers = {"qkv": block.qkv, "output": block.output, "gate_up": gate_up, "down": down}
    figures: dict[str, Any] = {}
    print(f"{pipeline.backend.describe()}, {pipeline.dtype}; plain / packed ms over N = {', '.join(map(str, ROWS))}")
    for name, layer in {**layers, "output head": decoder.output_head}.items():
        shape = f"{name} {layer.inputs} → {layer.outputs}"
        copies = max(1, BEYOND_CACHES // layer.nbytes)
        weights = [torch.randn(layer.outputs, layer.inputs).to(decoder.dtype) for _ in range(copies)]
        rivals = {"plain": Ops(), "packed": CpuOps()}
        held = {rival: [ops.projection(weight_OI) for weight_OI in weights] for rival, ops in rivals.items()}
        figures[shape] = {}
        for N in ROWS:
            x_NI = torch.randn(N, layer.inputs).to(decoder.dtype)
            calls = {rival: _in_turn(projections, x_NI) for rival, projections in held.items()}
            figures[shape][N] = _milliseconds(timing.median_seconds(calls, seconds))
        print(f"{shape:28}" + "  ".join(f"{t['plain']:.2f} / {t['packed']:.2f}" for t in figures[shape].values()))
    return figures


def _in_turn(projections: list[Projection], x_NI: torch.Tensor) -> Callable[[], object]:
    turn = [0]

    def call() -> object:
        turn[0] = (turn[0] + 1) % len(projections)
        return projections[turn[0]](x_NI)

    return call


def passes(plain: Pipeline, packed: Pipeline, arguments: argparse.Namespace) -> dict[int, Any]:
    """Nodes → milliseconds of a target pass each way, and how much the first node's logits depend on the others."""
    text = "\n".join(prompt.text for prompt in spread_prompts(arguments.prompts, 20))
    tokens = encode(plain.tokenizer, text, chat=None)[: arguments.prefix + max(NODES)]
    sessions: dict[str, Session] = {}
    for name, pipeline in (("plain", plain), ("packed", packed)):
        sessions[name] = pipeline.models.session(pipeline.models.target)
        sessions[name].prefill(0, tokens[: arguments.prefix])
    figures: dict[int, Any] = {}
    alone: dict[str, torch.Tensor] = {}
    for N in NODES:
        tree = TokenTree.chain(tokens[arguments.prefix], tokens[arguments.prefix + 1 : arguments.prefix + N])
        calls = {name: functools.partial(session.score, [0], [tree]) for name, session in sessions.items()}
        first = {name: session.score([0], [tree])[0].logits_NV[0] for name, session in sessions.items()}
        alone = alone or first
        figures[N] = {
            **_milliseconds(timing.median_seconds(calls, 3 * arguments.seconds)),
            "first_node_differs": {name: float((first[name] - alone[name]).abs().max()) for name in first},
        }
        t = figures[N]
        differs = ", ".join(f"{name} {value:.1e}" for name, value in t["first_node_differs"].items())
        print(
            f"pass over {N:2} nodes: plain {t['plain']:.1f} ms, packed {t['packed']:.1f} ms, "
            f"{t['plain'] / t['packed']:.2f}x; first node's logits off those of N = 1 by {differs}",
            flush=True,
        )
    return figures


def _milliseconds(times: timing.Times) -> dict[str, float]:
    return {name: round(1e3 * seconds, 4) for name, seconds in times.items()}


if __name__ == "__main__":
    sys.exit(run_script(main))
