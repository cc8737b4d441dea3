"""What does speculative flash decode cost over plain flash decode? (ALSpec, Figs. 12 and 13.)

    python -m benchmarks.speculative_decode [--quick] [--device cpu|cuda] [--shapes 8b smollm2] [--dtypes bfloat16]

Times one attention call of one query (batch 1) over contexts of 1K to 128K tokens and windows of S = 128, 256 and 512:
plain flash decode (the tree attention kernel: same tiling, same number of programs), plain once more (what is noise?),
speculative flash decode in one piece, its prediction alone, prediction and rest as two pieces, and
``scaled_dot_product_attention``. Then attention + MLP with random weights of the 8B shape, with and without
speculation, on one device: how long until the prediction, the exact result, the MLP's output on either.

On a GPU every variant is captured in a CUDA graph that goes through several sets of keys and values, more than the L2
cache holds, and replayed. On the CPU: the torch reference op against plain attention, and against what it replaces
(``separate``: predict, then compute exactly), SmolLM2's shape, contexts of 512 to 8K, one query and eight; one thread,
whose own time is counted. The variants take turns; each gets the median of its rounds. Before it is timed, every
speculative result is compared with the plain one.

Writes results/speculative_decode-<machine>.json, and the same as .svg if matplotlib is there. Needs torch, on a GPU
triton and pluggy; no network.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, M model dim, P context (committed keys).
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.places import RESULTS
from benchmarks.support import plots
from benchmarks.support.cuda_timing import replays_of, seconds_on_device
from benchmarks.support.decode_variants import SHAPES, Inputs, Shape, cpu_variants, gpu_variants, over, worst_difference
from benchmarks.support.live_table import LiveTable
from spec_sdk.bench.aims import Aim, aim
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import device_parser, output_path
from spec_sdk.bench.timing import median_rounds, own_clock, timer

AIM = 1.02
AIM_FROM = 8192
"""On a GPU, 8B shape, contexts from 8K: the whole speculative op takes at most 1.02 times plain flash decode."""

ROTATED_BYTES = 256 << 20
"""Keys and values that a graph goes through: several times the L2 cache of any GPU so far."""


def timed(runs: Mapping[str, Callable[[], Any]], sets: int, device: torch.device, options: Any) -> dict[str, float]:
    """Median microseconds per set of every run; on a GPU of their graphs."""
    if device.type == "cuda":
        seconds = median_rounds(replays_of(runs), options.rounds, options.repeats, seconds_on_device)
    else:
        seconds = median_rounds(runs, options.rounds, options.repeats, timer(own_clock(device)))
    return {name: round(1e6 * value / sets, 3) for name, value in seconds.items()}


def measure_attention(shape: Shape, context: int, queries: int, dtype: torch.dtype, options: Any) -> dict[str, Any]:
    """One context: microseconds per variant, and how far the exact results are apart."""
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    first = Inputs.random(shape, context, queries, device, dtype)
    count = max(2, min(256, -(-ROTATED_BYTES // first.bytes))) if on_gpu else 1
    sets = [first] + [Inputs.random(shape, context, queries, device, dtype) for _ in range(count - 1)]
    on_cpu = functools.partial(cpu_variants, context, queries, options.sizes)
    variants = gpu_variants(context, options.sizes, device) if on_gpu else on_cpu()
    plain_BNHD = variants["plain"](first)
    speculative = [variants[name](first) for name in variants if name.startswith(("whole", "pieces"))]
    worst = max((worst_difference(result.exact_BNHD, plain_BNHD) for result in speculative), default=0.0)
    assert worst < (1e-4 if dtype == torch.float32 else 2e-2), f"exact results differ by {worst}"
    times = timed({name: over(sets, variant) for name, variant in variants.items()}, count, device, options)
    return {"us": times, "sets": count, "gb_s": round(first.bytes / times["plain"] / 1e3, 1), "difference": worst}


COLUMNS = {"context": 7, "plain": 11, "GB/s": 5, "again": 6, "sdpa": 6, "S": 4} | dict.fromkeys(
    ("whole", "separate", "predict", "pieces"), 6
)


def show(case: Mapping[str, Any], sizes: Sequence[int], table: LiveTable) -> None:
    """Ratios: every variant's time over plain flash decode's."""
    times = case["us"]

    def ratios(names: Iterable[str]) -> list[str]:
        return [f"{times[name] / times['plain']:.3f}" if name in times else "–" for name in names]

    for size in sizes:
        plain = [str(case["context"]), f"{times['plain']:.1f} us", str(case["gb_s"]), *ratios(("plain again", "sdpa"))]
        of_size = ratios(f"{name} {size}" for name in ("whole", "separate", "predict", "pieces"))
        table.row(*plain, str(size), *of_size)


class Mlp:
    """A gated MLP with random weights, after the attention of one query."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        M, inner = shape.model_dim, shape.mlp
        self.gate_up = torch.randn(2 * inner, M, device=device, dtype=dtype) * M**-0.5
        self.down = torch.randn(M, inner, device=device, dtype=dtype) * inner**-0.5

    def __call__(self, o_BNHD: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(o_BNHD.flatten(2).to(self.down.dtype), self.gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down)


def measure_with_mlp(shape: Shape, context: int, dtype: torch.dtype, options: Any) -> dict[str, Any]:
    """Attention + MLP on one device: the times that a schedule for two devices is made of (GPU only)."""
    from spec_sdk_backends.speculative_attention import finish

    device = torch.device(options.device)
    mlp = Mlp(shape, device, dtype)
    first = Inputs.random(shape, context, 1, device, dtype)
    sets = [first] + [
        Inputs.random(shape, context, 1, device, dtype) for _ in range(min(15, ROTATED_BYTES // first.bytes))
    ]
    attention = gpu_variants(context, options.sizes, device)
    side = torch.cuda.Stream()
    runs: dict[str, Callable[[], Any]] = {
        "attention": over(sets, attention["plain"]),
        "attention, MLP": over(sets, lambda one: mlp(attention["plain"](one))),
    }
    for size in options.sizes:

        def miss(one: Inputs, size: int = size) -> torch.Tensor:
            return mlp(attention[f"whole {size}"](one).exact_BNHD)

        def receiver(one: Inputs, size: int = size) -> torch.Tensor:
            return mlp(attention[f"predict {size}"](one).o_BNHD)

        def overlapped(one: Inputs, size: int = size) -> Any:
            prediction = attention[f"predict {size}"](one)
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                mlp(prediction.o_BNHD)
            result = finish(prediction, *one.tensors, context, size)
            main.wait_stream(side)
            return result

        runs[f"prediction {size}"] = over(sets, attention[f"predict {size}"])
        runs[f"exact A {size}"] = over(sets, attention[f"whole {size}"])
        runs[f"exact A in pieces {size}"] = over(sets, attention[f"pieces {size}"])
        runs[f"exact A, MLP {size}"] = over(sets, miss)
        runs[f"prediction, MLP {size}"] = over(sets, receiver)
        runs[f"prediction, MLP beside the rest {size}"] = over(sets, overlapped)
    times = timed(runs, len(sets), device, options)
    for size in options.sizes:
        both = max(times[f"prediction, MLP {size}"], times[f"exact A in pieces {size}"])
        # two devices that overlap fully, the prediction's way between them left out
        times[f"two devices, computed {size}"] = both
    return {"us": times, "sets": len(sets)}


def show_mlp(context: int, entry: Mapping[str, Any], sizes: Sequence[int]) -> None:
    times = entry["us"]
    plain = times["attention, MLP"]
    print(f"  {context:>6} | attention, MLP {plain:.1f} us (attention {times['attention']:.1f}); over that:")
    for size in sizes:
        names = [name.removesuffix(f" {size}") for name in times if name.endswith(f" {size}")]
        print(f"         S={size}: " + " | ".join(f"{name} {times[f'{name} {size}'] / plain:.3f}" for name in names))
    sys.stdout.flush()


def aims(cases: Sequence[Mapping[str, Any]]) -> list[Aim]:
    ratios = [
        case["us"][name] / case["us"]["plain"]
        for case in cases
        if (case["device"], case["shape"]) == ("cuda", "8b") and case["context"] >= AIM_FROM
        for name in case["us"]
        if name.startswith("whole")
    ]
    name = f"8B shape, one GPU, contexts from {AIM_FROM}: speculative over plain flash decode <= {AIM}"
    if not ratios:
        return [aim(name, None, "needs an NVIDIA GPU")]
    return [aim(name, max(ratios) <= AIM, f"worst {max(ratios):.3f}")]


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Duration over context (Fig. 12), a panel per run."""
    panels = {
        key: list(cases)
        for key, cases in itertools.groupby(
            report["cases"], lambda case: (case["label"], case["dtype"], case["queries"])
        )
    }
    if (figure := plots.new_figure(6 * len(panels), 4.5)) is None:
        return
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, ((label, dtype, queries), cases) in zip(axes[0], panels.items(), strict=True):
        for name in dict.fromkeys(itertools.chain.from_iterable(case["us"] for case in cases)):
            points = [(case["context"], case["us"][name]) for case in cases if name in case["us"]]
            if name != "plain again":
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        axis.set(xscale="log", yscale="log", xlabel="context, tokens", ylabel="microseconds")
        axis.set_title(f"{label}, {dtype}, {queries} queries", fontsize=9)
        axis.legend(fontsize=7)
    figure.suptitle(report["machine"], fontsize=9)
    plots.save(figure, path)


def parse(arguments: Sequence[str] | None) -> Any:
    parser = device_parser(__doc__, rounds=15, repeats=5)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), help="default: smollm2 on the CPU, both on a GPU")
    parser.add_argument("--dtypes", nargs="+", help="default: float32 and bfloat16 on the CPU, bfloat16 on a GPU")
    parser.add_argument("--contexts", type=int, nargs="+", help="tokens; default: 512 to 8192, on a GPU 1024 to 131072")
    parser.add_argument("--threads", type=int, default=1, help="CPU: torch's threads")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    options.sizes = [128] if options.quick else [128, 256, 512]
    options.queries = [1] if on_gpu or options.quick else [1, 8]
    options.shapes = options.shapes or (["8b", "smollm2"] if on_gpu else ["smollm2"])
    options.dtypes = options.dtypes or (["bfloat16"] if on_gpu else ["float32", "bfloat16"])
    contexts = [1024 << i for i in range(8)] if on_gpu else [512 << i for i in range(5)]
    if options.quick:
        contexts, options.rounds, options.repeats = [8192 if on_gpu else 1024], 3, 2
    options.contexts = options.contexts or contexts
    return options


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    if not on_gpu:
        torch.set_num_threads(options.threads)
    path = output_path(options.output, RESULTS, "speculative_decode", device, "quick" if options.quick else "")
    facts = {"rounds": options.rounds, "repeats": options.repeats, "attention_mlp": []}
    report = CaseReport(path, "speculative_decode", device, math.inf, **facts)
    print(f"{report.content['machine']}, torch {torch.__version__}; times over plain flash decode's")
    torch.manual_seed(0)
    for name, dtype, queries in itertools.product(options.shapes, options.dtypes, options.queries):
        shape = SHAPES[name]
        head = {"device": options.device, "shape": name, "label": shape.label, "dtype": dtype, "queries": queries}
        print(f"\n{shape.label}, {dtype}, {queries} queries")
        table = LiveTable(COLUMNS)
        for context in options.contexts:
            found = measure_attention(shape, context, queries, getattr(torch, dtype), options)
            report.add({**head, "context": context, **found})
            show(report.cases[-1], options.sizes, table)
    if on_gpu:
        print(f"\nattention + MLP, {SHAPES['8b'].label}, bfloat16")
        for context in [c for c in options.contexts if c >= AIM_FROM] or options.contexts:
            entry = measure_with_mlp(SHAPES["8b"], context, torch.bfloat16, options)
            report.content["attention_mlp"].append({"context": context, **entry})
            show_mlp(context, entry, options.sizes)
            torch.cuda.empty_cache()
    report.finish(aims(report.cases))
    plot(report.content, path.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
