"""What does layer-parallel drafting save on one device? Sequential against unfused against fused, same process.

    python benchmarks/layer_parallel.py [--quick] [--device cpu|cuda] [--shapes smollm2,1b,8b]

Times one drafting pass over N nodes (one level of a beam, N = 1, 4, 8) after a prefix, with random weights in the
shapes of real models: every block in turn (sequential), groups of 1 … 5 layers computed layer by layer (unfused), and
the same groups as batched operations (fused). ``fused, separate products`` keeps the batched attention but multiplies
layer by layer: it tells what the batched products themselves are worth. (On the CPU packed weights are always
multiplied layer by layer, so the two are one and the same there.) Groups are those of
``spec_sdk/model/layer_groups.py``.

On a GPU everything is bfloat16, and each pass is captured in a CUDA graph of its own (static tokens, positions and
cache slots) and replayed; ``eager`` gives the same passes uncaptured. On the CPU passes run eagerly in float32. The
variants take turns, and each gets the median of its rounds. Before it is timed, every fused pass is compared with the
unfused one.

Writes results/layer_parallel-<machine>-<dtype>.json. Needs torch, on a GPU triton and pluggy; no network. Run it from a
checkout without installing: PYTHONPATH=.:plugins/backends python benchmarks/layer_parallel.py

Legend: N nodes, M model dim, V vocabulary; g layers of a group, K rows, I and O inputs and outputs of a product.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.support import machine
from benchmarks.support.random_model import SHAPES, bytes_per_pass, ops_of, random_decoder
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.layer_groups import describe_groups, easyspec_groups
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import ProjectionStack
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows

AIM = 1.3
"""A drafted token of the 1B shape on a GPU, N = 4 layers per group: fused at least so many times faster than
sequential, both captured."""


class StaticPass:
    """One drafting pass with everything prepared: N children of the root behind a prefix of random K and V.

    Calling it computes the logits of the nodes; tokens, positions, mask and cache slots stay where they are, so that
    a CUDA graph may hold on to them.
    """

    def __init__(self, decoder: Decoder, ops: Ops, nodes: int, prefix: int) -> None:
        self.decoder = decoder
        device = decoder.device
        cache = decoder.new_cache()
        cache.reserve(1, prefix + nodes)
        # random, and small: what is in the cache makes no difference to the time
        cache.k_LSGCD.normal_(std=0.1)
        cache.v_LSGCD.normal_(std=0.1)
        tokens = torch.randint(decoder.config.vocab_size, (nodes,)).tolist()
        order, ends, position = range(nodes), range(1, nodes + 1), [prefix] * nodes
        level = RequestRows(0, prefix, prefix, tokens, position, order, order, ends, position)
        inputs = PassInputs.of("growing", [level], device)
        _, self.work = decoder.forward_pass(inputs, cache, ops)
        # to have all that is computed on the host, or once per pass, in place before a capture
        inputs.parts[0].mask.bias_NT(decoder.dtype)

    def __call__(self, runner: BlockRunner) -> torch.Tensor:
        h_BNM = self.decoder.embed(self.work.inputs.token_BN)
        return self.decoder.head(runner.run(self.decoder, h_BNM, self.work))


def separate_products(stack: ProjectionStack, x_gKI: torch.Tensor) -> torch.Tensor:
    """What a stack of projections does in one operation, layer by layer."""
    return torch.stack([stack[layer](x_KI) for layer, x_KI in enumerate(x_gKI)])


class SeparateProducts(LayerParallelRunner):
    """The fused runner with one matrix product per layer."""

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        with mock.patch.object(ProjectionStack, "__call__", separate_products):
            return super().run(decoder, h_BNM, work)


def variants(layers: int, sizes: list[int]) -> dict[str, BlockRunner]:
    """Name → runner of all that is timed."""
    runners: dict[str, BlockRunner] = {"sequential": SequentialRunner()}
    for size in sizes:
        groups = easyspec_groups(layers, size)
        runners[f"unfused {size}"] = LayerParallelRunner.of(groups, fused=False)
        runners[f"fused {size}"] = LayerParallelRunner.of(groups)
        runners[f"fused, separate products {size}"] = SeparateProducts.of(groups)
    return runners


def captured(run: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """``run`` as a CUDA graph: warmed up on a side stream (kernels compile, libraries allocate), captured, replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    torch.cuda.synchronize()
    return graph.replay


def seconds_on_gpu(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of one ``run``, over ``repeats`` in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1000 / repeats


def seconds_on_cpu(run: Callable[[], Any], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - began) / repeats


def medians(runs: Mapping[str, Callable[[], Any]], on_gpu: bool, rounds: int, repeats: int) -> dict[str, float]:
    """Median seconds of each of ``runs``, which take turns, so that a machine that slows down slows all of them."""
    clock = seconds_on_gpu if on_gpu else seconds_on_cpu
    for run in runs.values():
        clock(run, 1)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(clock(run, repeats))
    return {name: statistics.median(values) for name, values in times.items()}


def largest_difference(static: StaticPass, runners: Mapping[str, BlockRunner]) -> float:
    """Of fused logits from unfused ones, relative to the largest logit, over all group sizes."""
    worst = 0.0
    for name, runner in runners.items():
        if name.startswith("fused"):
            defined = static(runners[f"unfused {name.split()[-1]}"])
            worst = max(worst, float((static(runner) - defined).abs().max() / defined.abs().max()))
    return worst


@torch.inference_mode()
def measure_shape(name: str, device: torch.device, dtype: torch.dtype, ops: Ops, options: Any) -> dict[str, Any]:
    """All of one shape's figures: nodes → variant → milliseconds."""
    label = SHAPES[name][0]
    decoder = random_decoder(name, device, dtype, ops)
    on_gpu = device.type == "cuda"
    runners = variants(decoder.layers, options.sizes)
    strategies = {size: describe_groups(easyspec_groups(decoder.layers, size)) for size in options.sizes}
    result: dict[str, Any] = {
        "shape": label,
        "layers": decoder.layers,
        "weights_gb": round(bytes_per_pass(decoder) / 1e9, 3),
        "strategies": strategies,
        "nodes": {},
    }
    print(f"\n{label}, {str(dtype).removeprefix('torch.')}, {result['weights_gb']} GB a pass, prefix {options.prefix}")
    for nodes in options.nodes:
        static = StaticPass(decoder, ops, nodes, options.prefix)
        entry: dict[str, Any] = {"largest_difference": largest_difference(static, runners)}
        eager = {variant: functools.partial(static, runner) for variant, runner in runners.items()}
        if on_gpu:
            graphs = {variant: captured(run) for variant, run in eager.items()}
            entry["captured_ms"] = as_ms(medians(graphs, True, options.rounds, options.repeats))
            del graphs
            entry["eager_ms"] = as_ms(medians(eager, True, max(3, options.rounds // 3), options.repeats))
        else:
            entry["eager_ms"] = as_ms(medians(eager, False, options.rounds, 1))
        result["nodes"][nodes] = entry
        show(nodes, entry, options.sizes)
    return result


def as_ms(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(1000 * value, 5) for name, value in seconds.items()}


def show(nodes: int, entry: Mapping[str, Any], sizes: list[int]) -> None:
    for kind in ("captured_ms", "eager_ms"):
        if kind in entry:
            times = entry[kind]
            plain = times["sequential"]
            print(f"N={nodes} {kind.removesuffix('_ms')}: sequential {plain:.3f} ms; × faster than sequential:")
            for size in sizes:
                ratios = [
                    f"{variant} {plain / times[f'{variant} {size}']:.2f}"
                    for variant in ("unfused", "fused", "fused, separate products")
                ]
                print(f"    size {size}: " + ", ".join(ratios), flush=True)
    print(f"    largest relative difference, fused from unfused: {entry['largest_difference']:.1e}", flush=True)


def aims(report: Mapping[str, Any]) -> list[str]:
    """One line per aim: met, missed or not measured."""
    lines = []
    for shape, aim in (("1b", AIM), ("8b", None)):
        measured = report["shapes"].get(shape, {}).get("nodes", {}).get(1, {}).get("captured_ms", {})
        what = f"{SHAPES[shape][0].split(':')[0]} shape, one GPU, captured, groups of 4, one node: fused vs sequential"
        if "fused 4" not in measured:
            verdict = "not measured"
        else:
            ratio = measured["sequential"] / measured["fused 4"]
            verdict = f"{ratio:.2f}x" if aim is None else f"{ratio:.2f}x, {'met' if ratio >= aim else 'missed'}"
        lines.append(f"aim: {what}{f' >= {aim}x' if aim else ' (reported)'}: {verdict}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", help="comma-separated; default: smollm2 on the CPU, all on a GPU")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32 on the CPU, else bfloat16")
    parser.add_argument("--prefix", type=int, default=512, help="committed tokens before the pass")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=20, help="GPU: passes in a row per round")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one shape, one N, two sizes, few rounds")
    parser.add_argument("--output", help="default: layer_parallel-<machine>-<dtype>.json in results; quick: none")
    options = parser.parse_args()
    options.nodes, options.sizes = [1, 4, 8], [1, 2, 3, 4, 5]
    if options.quick:
        options.nodes, options.sizes, options.rounds, options.repeats = [1], [1, 4], 3, 5
    device = torch.device(options.device)
    dtype = getattr(torch, options.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    shapes = (options.shapes or ("smollm2,1b,8b" if device.type == "cuda" and not options.quick else "smollm2")).split(
        ","
    )
    ops = ops_of(device)
    report: dict[str, Any] = {
        "machine": machine.device_name(device),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "prefix": options.prefix,
        "rounds": options.rounds,
        "shapes": {},
    }
    print(f"{report['machine']}, torch {torch.__version__}")
    for shape in shapes:
        report["shapes"][shape] = measure_shape(shape, device, dtype, ops, options)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report["aims"] = aims(report)
    name = f"layer_parallel-{machine.slug(report['machine'])}-{report['dtype']}.json"
    default = None if options.quick else Path(__file__).parent / "results" / name
    output = Path(options.output) if options.output else default
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nwritten to {output}")
    print("\n".join(["", *report["aims"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
