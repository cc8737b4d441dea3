"""What does speculative flash decode cost over plain flash decode? (ALSpec, Figs. 12 and 13.)

    python -m benchmarks.speculative_decode [--quick] [--device cpu|cuda] [--shapes 8b,smollm2] [--dtypes bfloat16]

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
triton and pluggy; no network. From a checkout without installing: PYTHONPATH=.:plugins/backends.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, M model dim, P context (committed keys).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.layer_parallel import captured, medians
from benchmarks.support import machine, plots
from spec_sdk.contracts import SpeculativeAttention
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask

AIM = 1.02
AIM_FROM = 8192
"""On a GPU, 8B shape, contexts from 8K: the whole speculative op takes at most 1.02 times plain flash decode."""

ROTATED_BYTES = 256 << 20
"""Keys and values that a graph goes through: several times the L2 cache of any GPU so far."""


@dataclass(frozen=True)
class Shape:
    label: str
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @property
    def model_dim(self) -> int:
        return self.heads * self.head_dim


SHAPES = {
    "8b": Shape("Llama-3.1-8B: 32/8 heads of 128", 32, 8, 128, 14336),
    "smollm2": Shape("SmolLM2-135M: 9/3 heads of 64", 9, 3, 64, 1536),
}


@dataclass(frozen=True)
class Inputs:
    """One query block and one set of keys and values."""

    q_BNHD: torch.Tensor
    k_BGSD: torch.Tensor
    v_BGSD: torch.Tensor

    @staticmethod
    def random(shape: Shape, context: int, queries: int, device: torch.device, dtype: torch.dtype) -> Inputs:
        keys = context + queries
        q_BNHD = torch.randn(1, queries, shape.heads, shape.head_dim, device=device, dtype=dtype)
        k_BGSD, v_BGSD = torch.randn(2, 1, shape.kv_heads, keys, shape.head_dim, device=device, dtype=dtype)
        return Inputs(q_BNHD, k_BGSD, v_BGSD)

    @property
    def bytes(self) -> int:
        return 2 * self.k_BGSD.numel() * self.k_BGSD.element_size()

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q_BNHD, self.k_BGSD, self.v_BGSD


Attention = Callable[[Inputs], Any]


def over(sets: Sequence[Inputs], attention: Attention) -> Callable[[], Any]:
    """``attention`` of every set, one after the other; the last result."""

    def run() -> Any:
        for one in sets[:-1]:
            attention(one)
        return attention(sets[-1])

    return run


def sdpa(one: Inputs) -> torch.Tensor:
    """torch's own, as one would call it without a tree: a single query sees all keys."""
    q_BHND = one.q_BNHD.transpose(1, 2)
    return F.scaled_dot_product_attention(q_BHND, one.k_BGSD, one.v_BGSD, enable_gqa=True)


def worst_difference(exact_BNHD: torch.Tensor, plain_BNHD: torch.Tensor) -> float:
    """Largest difference of the exact results, relative to the largest value."""
    return float((exact_BNHD.float() - plain_BNHD.float()).abs().max() / plain_BNHD.float().abs().max())


def cpu_seconds(runs: Mapping[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, float]:
    """Median seconds of each run, in turns. One thread's own time where there is one: others' work does not count."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            began = clock()
            for _ in range(repeats):
                run()
            times[name].append((clock() - began) / repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def timed(
    runs: Mapping[str, Callable[[], Any]], sets: int, on_gpu: bool, rounds: int, repeats: int
) -> dict[str, float]:
    """Median microseconds per set of every run."""
    seconds = medians(runs, True, rounds, repeats) if on_gpu else cpu_seconds(runs, rounds, repeats)
    return {name: round(1e6 * value / sets, 3) for name, value in seconds.items()}


def gpu_variants(context: int, sizes: Sequence[int], device: torch.device) -> dict[str, Attention]:
    """Name → attention of one set. With S: ``whole``, ``predict``, ``pieces`` (predict, then finish)."""
    from spec_sdk_backends.speculative_attention import finish, predict_part, speculative_attention
    from spec_sdk_backends.tree_attention import tree_attention

    end_T = torch.ones(1, dtype=torch.int32, device=device)

    def plain(one: Inputs) -> torch.Tensor:
        return tree_attention(*one.tensors, end_T, context)

    def whole(one: Inputs, size: int) -> SpeculativeAttention:
        return speculative_attention(*one.tensors, end_T, context, size)

    def predict(one: Inputs, size: int) -> Any:
        return predict_part(*one.tensors, end_T, context, size)

    def pieces(one: Inputs, size: int) -> SpeculativeAttention:
        return finish(predict(one, size), *one.tensors, context, size)

    variants: dict[str, Attention] = {"plain": plain, "plain again": plain, "sdpa": sdpa}
    for size in sizes:
        for name, variant in (("whole", whole), ("predict", predict), ("pieces", pieces)):
            variants[f"{name} {size}"] = functools.partial(variant, size=size)
    return variants


def cpu_variants(context: int, queries: int, sizes: Sequence[int]) -> dict[str, Attention]:
    """The torch reference: plain, the op, and what it replaces (``separate``: predict, then all keys once more)."""
    ops = Ops()
    end_N = [queries, *range(2, queries + 1)]
    mask = AttentionMask.tree(context, end_N, torch.device("cpu"))

    def plain(one: Inputs) -> torch.Tensor:
        return ops.tree_attention(*one.tensors, mask)

    def whole(one: Inputs, size: int) -> SpeculativeAttention:
        return ops.speculative_attention(*one.tensors, mask, size)

    def separate(one: Inputs, size: int) -> SpeculativeAttention:
        predicted_BNHD = ops.sink_attention(*one.tensors, mask, size).o_BNHD
        return SpeculativeAttention.measured(predicted_BNHD, plain(one), one.q_BNHD.dtype)

    variants: dict[str, Attention] = {"plain": plain, "plain again": plain}
    if queries == 1:
        variants["sdpa"] = sdpa
    for size in sizes:
        if context > 2 * size:
            variants[f"whole {size}"] = functools.partial(whole, size=size)
            variants[f"separate {size}"] = functools.partial(separate, size=size)
    return variants


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
    runs: dict[str, Callable[[], Any]] = {name: over(sets, variant) for name, variant in variants.items()}
    if on_gpu:
        runs = {name: captured(run) for name, run in runs.items()}
    times = timed(runs, count, on_gpu, options.rounds, options.repeats)
    return {"us": times, "sets": count, "gb_s": round(first.bytes / times["plain"] / 1e3, 1), "difference": worst}


def show(context: int, entry: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Ratios first: every variant over plain."""
    times = entry["us"]
    ratios = [f"{name} {times[name] / times['plain']:.3f}" for name in ("plain again", "sdpa") if name in times]
    for size in sizes:
        names = [name for name in ("whole", "separate", "predict", "pieces") if f"{name} {size}" in times]
        if names:
            ratios.append(f"S={size}: " + " ".join(f"{n} {times[f'{n} {size}'] / times['plain']:.3f}" for n in names))
    print(f"  {context:>6} | {' | '.join(ratios)} | plain {times['plain']:.1f} us, {entry['gb_s']} GB/s", flush=True)


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
    times = timed({name: captured(run) for name, run in runs.items()}, len(sets), True, options.rounds, options.repeats)
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


def aims(report: Mapping[str, Any]) -> list[str]:
    """One line per aim: met, missed or not measured."""
    ratios = [
        times[name] / times["plain"]
        for run in report["attention"]
        if run["device"] == "cuda" and run["shape"] == "8b"
        for context, entry in run["contexts"].items()
        if int(context) >= AIM_FROM
        for times in [entry["us"]]
        for name in times
        if name.startswith("whole")
    ]
    what = f"8B shape, one GPU, contexts from {AIM_FROM}: speculative over plain flash decode <= {AIM}"
    if not ratios:
        return [f"aim: {what}: not measured"]
    worst = max(ratios)
    return [f"aim: {what}: worst {worst:.3f}, {'met' if worst <= AIM else 'missed'}"]


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Duration over context (Fig. 12), a panel per run."""
    runs = report["attention"]
    if (figure := plots.new_figure(6 * len(runs), 4.5)) is None:
        return
    axes = figure.subplots(1, len(runs), squeeze=False)
    for axis, run in zip(axes[0], runs, strict=True):
        contexts = [int(context) for context in run["contexts"]]
        entries = list(run["contexts"].values())
        for name in dict.fromkeys(itertools.chain.from_iterable(entry["us"] for entry in entries)):
            points = [(c, e["us"][name]) for c, e in zip(contexts, entries, strict=True) if name in e["us"]]
            if name != "plain again":
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        axis.set(xscale="log", yscale="log", xlabel="context, tokens", ylabel="microseconds")
        axis.set_title(f"{run['label']}, {run['dtype']}, {run['queries']} queries", fontsize=9)
        axis.legend(fontsize=7)
    figure.suptitle(report["machine"], fontsize=9)
    plots.save(figure, path)


def parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", help="comma-separated; default: smollm2 on the CPU, both on a GPU")
    parser.add_argument("--dtypes", help="comma-separated; default: float32,bfloat16 on the CPU, bfloat16 on a GPU")
    parser.add_argument("--contexts", help="comma-separated tokens; default: 512 to 8192, on a GPU 1024 to 131072")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=5, help="calls in a row (GPU: replays of a graph) per round")
    parser.add_argument("--threads", type=int, default=1, help="CPU: torch's threads")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one context, one S, few rounds; no file")
    parser.add_argument("--output", help="default: benchmarks/results/speculative_decode-<machine>.json; quick: none")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    options.sizes = [128] if options.quick else [128, 256, 512]
    options.queries = [1] if on_gpu or options.quick else [1, 8]
    options.shapes = (options.shapes or ("8b,smollm2" if on_gpu else "smollm2")).split(",")
    options.dtypes = (options.dtypes or ("bfloat16" if on_gpu else "float32,bfloat16")).split(",")
    contexts = [1024 << i for i in range(8)] if on_gpu else [512 << i for i in range(5)]
    if options.quick:
        contexts, options.rounds, options.repeats = [8192 if on_gpu else 1024], 3, 2
    options.contexts = [int(x) for x in options.contexts.split(",")] if options.contexts else contexts
    return options


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    on_gpu = options.device == "cuda"
    if not on_gpu:
        torch.set_num_threads(options.threads)
    name = machine.device_name(torch.device(options.device))
    report: dict[str, Any] = {"machine": name, "cpus": os.cpu_count(), "torch": torch.__version__}
    report |= {"rounds": options.rounds, "repeats": options.repeats, "attention": [], "attention_mlp": []}
    print(f"{name}, torch {torch.__version__}; times over plain flash decode")
    torch.manual_seed(0)
    for name, dtype, queries in itertools.product(options.shapes, options.dtypes, options.queries):
        shape = SHAPES[name]
        head = {"device": options.device, "shape": name, "label": shape.label, "dtype": dtype, "queries": queries}
        print(f"\n{shape.label}, {dtype}, {queries} queries\n  context")
        contexts: dict[int, Any] = {}
        for context in options.contexts:
            contexts[context] = measure_attention(shape, context, queries, getattr(torch, dtype), options)
            show(context, contexts[context], options.sizes)
        report["attention"].append({**head, "contexts": contexts})
    if on_gpu:
        print(f"\nattention + MLP, {SHAPES['8b'].label}, bfloat16")
        for context in [c for c in options.contexts if c >= AIM_FROM] or options.contexts:
            entry = measure_with_mlp(SHAPES["8b"], context, torch.bfloat16, options)
            report["attention_mlp"].append({"context": context, **entry})
            show_mlp(context, entry, options.sizes)
            torch.cuda.empty_cache()
    report["aims"] = aims(report)
    file = f"speculative_decode-{machine.slug(report['machine'])}.json"
    default = None if options.quick else Path(__file__).parent / "results" / file
    output = Path(options.output) if options.output else default
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nwritten to {output}")
        plot(report, output.with_suffix(".svg"))
    print("\n".join(["", *report["aims"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
