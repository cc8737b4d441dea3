"""What does layer-parallel drafting save on one device? Sequential against unfused against fused, same process.

    python -m benchmarks.layer_parallel [--quick] [--device cpu|cuda] [--shapes smollm2,1b,8b]

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

Writes results/layer_parallel-<machine>-<dtype>.json. Needs torch, on a GPU triton and pluggy; no network.

Legend: N nodes, M model dim, V vocabulary; g layers of a group, K rows, I and O inputs and outputs of a product.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import torch

from benchmarks.places import RESULTS
from benchmarks.support.cuda_timing import replays_of, seconds_on_device
from benchmarks.support.device_ops import device_ops
from benchmarks.support.live_table import LiveTable
from spec_sdk.bench.aims import Aim, aim
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import device_parser, output_path
from spec_sdk.bench.random_models import SHAPES, bytes_per_pass, random_decoder
from spec_sdk.bench.timing import median_rounds, timer
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


def largest_difference(static: StaticPass, runners: Mapping[str, BlockRunner]) -> float:
    """Of fused logits from unfused ones, relative to the largest logit, over all group sizes."""
    worst = 0.0
    for name, runner in runners.items():
        if name.startswith("fused"):
            defined = static(runners[f"unfused {name.split()[-1]}"])
            worst = max(worst, float((static(runner) - defined).abs().max() / defined.abs().max()))
    return worst


def about(name: str, decoder: Decoder, sizes: list[int]) -> dict[str, Any]:
    """What is timed of a shape, whatever the number of nodes."""
    strategies = {size: describe_groups(easyspec_groups(decoder.layers, size)) for size in sizes}
    weights_gb = round(bytes_per_pass(decoder) / 1e9, 3)
    return {"label": SHAPES[name][0], "layers": decoder.layers, "weights_gb": weights_gb, "strategies": strategies}


@torch.inference_mode()
def measure(decoder: Decoder, ops: Ops, nodes: int, options: Any) -> dict[str, Any]:
    """Milliseconds of every variant at so many nodes: ``eager_ms``, and on a GPU ``captured_ms``."""
    runners = variants(decoder.layers, options.sizes)
    static = StaticPass(decoder, ops, nodes, options.prefix)
    found: dict[str, Any] = {"largest_difference": largest_difference(static, runners)}
    eager = {variant: functools.partial(static, runner) for variant, runner in runners.items()}
    if decoder.device.type == "cuda":
        graphs = replays_of(eager)
        found["captured_ms"] = as_ms(median_rounds(graphs, options.rounds, options.repeats, seconds_on_device))
        del graphs
        rounds = max(3, options.rounds // 3)
        # the host's time, of which a few calls tell as much
        found["eager_ms"] = as_ms(median_rounds(eager, rounds, max(1, options.repeats // 10), seconds_on_device))
    else:
        found["eager_ms"] = as_ms(median_rounds(eager, options.rounds, 1, timer(time.perf_counter)))
    return found


def as_ms(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(1000 * value, 5) for name, value in seconds.items()}


COMPARED = ("unfused", "fused", "fused, separate products")
COLUMNS = {"N": 2, "passes": -8, "layers": 6, "in sequence": 11, **dict.fromkeys(COMPARED, 7)}


def show(case: Mapping[str, Any], sizes: list[int], table: LiveTable) -> None:
    for kind in ("captured", "eager"):
        times = case.get(f"{kind}_ms")
        for size in sizes if times else []:
            plain = times["sequential"]
            ratios = [f"{plain / times[f'{variant} {size}']:.2f}" for variant in COMPARED]
            table.row(str(case["nodes"]), kind, str(size), f"{plain:.2f} ms", *ratios)


def aims(cases: list[dict[str, Any]]) -> list[Aim]:
    name = f"1B shape, one GPU, captured, groups of 4, one node: fused at least {AIM} times as fast as in sequence"
    for case in cases:
        times = case.get("captured_ms", {})
        if (case["shape"], case["nodes"]) == ("1b", 1) and "fused 4" in times:
            ratio = times["sequential"] / times["fused 4"]
            return [aim(name, ratio >= AIM, f"{ratio:.2f}")]
    return [aim(name, None, "needs an NVIDIA GPU")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = device_parser(__doc__, seconds=math.inf, rounds=15, repeats=20)
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SHAPES), help="default: smollm2 on the CPU, all on a GPU, 1b first"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32 on the CPU, else bfloat16")
    parser.add_argument("--prefix", type=int, default=512, help="committed tokens before the pass")
    options = parser.parse_args(arguments)
    options.nodes, options.sizes = [1, 4, 8], [1, 2, 3, 4, 5]
    if options.quick:
        options.nodes, options.sizes, options.rounds, options.repeats = [1], [1, 4], 3, 5
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    dtype = options.dtype or ("bfloat16" if on_gpu else "float32")
    shapes = options.shapes or (["1b", "smollm2", "8b"] if on_gpu and not options.quick else ["smollm2"])
    ops = device_ops(device)
    path = output_path(options.output, RESULTS, "layer_parallel", device, dtype, "quick" if options.quick else "")
    facts = {"dtype": dtype, "prefix": options.prefix, "rounds": options.rounds, "shapes": {}}
    report = CaseReport(path, "layer_parallel", device, options.seconds, **facts)
    print(f"{report.content['machine']}, torch {torch.__version__}")
    for name in shapes:
        decoder = random_decoder(name, device, getattr(torch, dtype), ops)
        shape = report.content["shapes"][name] = about(name, decoder, options.sizes)
        weights = f"{shape['weights_gb']} GB a pass"
        print(f"\n{shape['label']}, {dtype}, {weights}, prefix {options.prefix}; times as fast as in sequence:")
        table = LiveTable(COLUMNS)
        for nodes in report.in_time(options.nodes, f"{shape['label']}, {{}} nodes".format):
            report.add({"shape": name, "nodes": nodes, **measure(decoder, ops, nodes, options)})
            show(report.cases[-1], options.sizes, table)
        worst = max((case["largest_difference"] for case in report.cases if case["shape"] == name), default=math.nan)
        print(f"largest relative difference, fused from unfused: {worst:.1e}")
        del decoder
        if on_gpu:
            torch.cuda.empty_cache()
    report.finish(aims(report.cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
