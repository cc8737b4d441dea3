"""The figures that say how good the engine is on a GPU, on a model of random weights made there:

- plain decoding against the bandwidth bound: bytes of weights over what a large copy moves per second (counted as
  bytes read and written; cached keys and values, which a pass reads too, are left out of the bound);
- a pass over a tree of 64 nodes against a pass over one;
- all of that each way that the engine has of launching passes: operation by operation, small operations fused,
  captured as CUDA graphs, and both;
- what a cycle costs beyond the device's time, each way: wall time minus the time in which a kernel or a copy runs;
- transformers' ``generate`` with a static cache and a compiled decode step, where transformers is installed.

    python -m benchmarks.gpu.headline --output headline.json
    python -m benchmarks.gpu.headline --bits 4 --output headline_4_bits.json   # weights in few bits
    python -m benchmarks.gpu.headline --device cpu --shape tiny --tokens 8     # tries it out

``--output`` is written after every part, and no part is begun after ``--seconds``. All wall times are taken before the
first device time (timing.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.random_model import (
    Model,
    back_to_prompt,
    cycles,
    fitting,
    make_model,
    make_room,
    plain_pass,
    tree_pass,
)
from benchmarks.gpu.timing import PROFILED, as_ms, copy_bytes_per_s, device_s, wall_s
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.random_models import SHAPES, hf_fields
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.quantized import BITS

SCHEMA_VERSION = 1
NODES = 64


def sessions_each_way(model: Model, device: torch.device) -> dict[str, Callable[[], Session]]:
    """What makes the model's sessions behind the same prompt, with launches fused and captured, by name."""
    from spec_sdk.model.graph_executor import GraphExecutor
    from spec_sdk_backends.cuda_graphs import GraphCapture
    from spec_sdk_backends.fused_decoder import FusedDecoder

    plain = model.session.executor
    assert isinstance(plain, TorchExecutor)
    decoder, ops = plain.decoder, plain.ops

    def behind_prompt(make: Callable[[], TorchExecutor]) -> Session:
        session = Session(make())
        session.prefill(0, model.prompt[:-1])
        return session

    ways: dict[str, Callable[[], TorchExecutor]] = {
        "fused": lambda: TorchExecutor(FusedDecoder(decoder), ops),
        "captured": lambda: GraphExecutor(decoder, ops, GraphCapture(device)),
        "fused and captured": lambda: GraphExecutor(FusedDecoder(decoder), ops, GraphCapture(device)),
    }
    return {name: functools.partial(behind_prompt, make) for name, make in ways.items()}


def of_ways(model: Model, device: torch.device, rounds: int, bound_s: float) -> dict[str, Any]:
    """:func:`of_passes` and :func:`of_cycles` each way, with the plain ones' shares of the bound and the largest error
    of a plain pass beside the eager one.

    A way that raises has its ``error``, and the others their figures.
    """
    back_to_prompt(model)
    expected = plain_pass(model)().float()
    figures: dict[str, Any] = {}
    for name, make in sessions_each_way(model, device).items():
        try:
            way = dataclasses.replace(model, session=make())
            found = plain_pass(way)().float()
            figures[name] = of_passes(way, rounds)
            # the larger cache first, so that the other one's passes are captured once
            figures[name]["tree_cycle"] = of_cycles(way, NODES, rounds)
            figures[name]["plain_decoding"] = of_plain_decoding(way, rounds, bound_s)
            figures[name]["share_of_bound"] = 1e3 * bound_s / figures[name]["wall_ms"]["plain"]
            figures[name]["off_by"] = float((found - expected).abs().max() / expected.abs().max())
        except Exception as error:
            figures[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
    return figures


def add_device_times(report: dict[str, Any], model: Model, device: torch.device, rounds: int) -> None:
    """To the figures of the model's own way and of the others, those that there are. Of a way that raises it is noted
    in ``left_out``, and the others have theirs.
    """

    def add(name: str, figures: dict[str, Any], passes: dict[str, Any] | None, make: Callable[[], Model]) -> None:
        try:
            way = make()
            if passes is not None:
                passes_on_device(passes, way, device)
            for cycle in ("tree_cycle", "plain_decoding"):
                if cycle in figures:
                    cycle_on_device(figures[cycle], way, device, rounds)
        except Exception as error:
            report["left_out"][f"device times, {name}"] = f"{type(error).__name__}: {error}"[:500]

    back_to_prompt(model)
    add("operation by operation", report, report.get("passes"), lambda: model)
    ways: dict[str, Any] = report.get("ways", {})
    for name, make in sessions_each_way(model, device).items() if ways else ():
        if "error" not in ways[name]:
            add(name, ways[name], ways[name], lambda make=make: dataclasses.replace(model, session=make()))


def of_passes(model: Model, rounds: int) -> dict[str, Any]:
    """A plain pass and one over NODES nodes, at the same prefix."""
    wall = wall_s(both_passes(model), model.synchronize, rounds)
    return {"wall_ms": as_ms(wall), "tree_over_plain_wall": wall["tree"] / wall["plain"]}


def passes_on_device(figures: dict[str, Any], model: Model, device: torch.device) -> None:
    busy = {name: device_s(run, device) for name, run in both_passes(model).items()}
    plain, tree = busy["plain"], busy["tree"]
    figures["device_ms"] = as_ms(busy)
    figures["tree_over_plain_device"] = tree / plain if plain and tree else None


def both_passes(model: Model) -> dict[str, Callable[[], torch.Tensor]]:
    return {"plain": plain_pass(model), "tree": tree_pass(model, NODES)}


def of_cycles(model: Model, nodes: int, rounds: int) -> dict[str, Any]:
    """A cycle's wall time, and the slowest one: where a compilation falls into a request.

    From one answer to the next, as a reader of tokens sees it: a step ends with a read, and another may run by then.
    """
    run = cycles(model, nodes, rounds + 3)
    times: list[float] = []
    for turn in range(rounds + 3):
        began = time.perf_counter()
        next(run)
        if turn >= 3:
            times.append(time.perf_counter() - began)
    return {"nodes": nodes, **as_ms({"wall_ms": statistics.median(times), "slowest_ms": max(times)})}


def cycle_on_device(figures: dict[str, Any], model: Model, device: torch.device, rounds: int) -> None:
    """The device's part of a cycle, behind as many as :func:`of_cycles` took, and what is beyond it."""
    run = cycles(model, figures["nodes"], rounds + 2 * PROFILED + 8)
    for _ in range(rounds):
        next(run)
    busy = device_s(lambda: next(run), device)
    figures["device_ms"] = None if busy is None else round(1e3 * busy, 4)
    figures["overhead_ms"] = None if busy is None else round(figures["wall_ms"] - 1e3 * busy, 4)


def of_plain_decoding(model: Model, rounds: int, bound_s: float) -> dict[str, Any]:
    """Cycles of one node, with their share of the bound's speed."""
    figures = of_cycles(model, 1, rounds)
    return {**figures, "share_of_bound": 1e3 * bound_s / figures["wall_ms"]}


def of_transformers(shape: str, device: torch.device, dtype: torch.dtype, prompt: list[int], tokens: int) -> float:
    """Median wall seconds a token of greedy ``generate`` with a static cache, which compiles the decode step on a GPU.

    The first answer compiles and captures; of the second the later half is taken.
    """
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """Notes when each token is there."""

        def __init__(self) -> None:
            self.at: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.at.append(time.perf_counter())

        def end(self) -> None:
            pass

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(LlamaConfig(**hf_fields(shape))).eval()
    finally:
        torch.set_default_dtype(before)
    ids = torch.tensor([prompt], device=device)
    greedy = GenerationConfig(
        do_sample=False, max_new_tokens=tokens, cache_implementation="static", pad_token_id=0, eos_token_id=None
    )
    for _ in range(2):
        clock = Clock()
        model.generate(ids, greedy, attention_mask=torch.ones_like(ids), streamer=clock)
    later = clock.at[len(clock.at) // 2 :]
    return statistics.median(after - at for at, after in zip(later, later[1:], strict=False))


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All parts that there is time for; the report is written after each."""
    began = time.monotonic()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = fitting(options.shape, device)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "headline",
        **device_facts(device),
        "shape": SHAPES[shape][0],
        "dtype": str(dtype).removeprefix("torch."),
        "prefix": options.prefix,
        **({"bits": options.bits} if options.bits else {}),
        "left_out": {},
    }

    def keep() -> None:
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    def in_time(part: str) -> bool:
        keep()
        spent = time.monotonic() - began
        if spent > options.seconds:
            report["left_out"][part] = f"{spent:.0f} s of {options.seconds:.0f} were spent"
        return spent <= options.seconds

    rate = copy_bytes_per_s(device)
    model = make_model(shape, device, dtype, options.prefix, options.bits)
    bound_s = model.weight_bytes / rate
    report |= {"copy_tb_per_s": rate / 1e12, "weights_gb": model.weight_bytes / 1e9, "bound_ms": 1e3 * bound_s}
    if in_time("plain decoding"):
        report["plain_decoding"] = of_plain_decoding(model, options.tokens, bound_s)
    if in_time("passes"):
        back_to_prompt(model)
        report["passes"] = of_passes(model, options.tokens)
    if in_time("tree cycle"):
        report["tree_cycle"] = of_cycles(model, NODES, options.tokens)
    if device.type != "cuda":
        report["left_out"]["ways"] = "passes are captured on a GPU"
    elif in_time("ways"):
        report["ways"] = of_ways(model, device, options.tokens, bound_s)
    # an error on the device that a way met may end the next call there
    keep()
    prompt = model.prompt
    del model
    make_room(device)
    if importlib.util.find_spec("transformers") is None:
        report["left_out"]["transformers"] = "transformers is not installed"
    elif in_time("transformers"):
        try:
            step_s = of_transformers(shape, device, dtype, prompt, options.tokens)
            report["transformers"] = {"token_ms": 1e3 * step_s, "share_of_bound": bound_s / step_s}
        except Exception as error:  # whatever a rival raises: our own figures stand
            report["left_out"]["transformers"] = f"{type(error).__name__}: {error}"[:500]
    if in_time("device times"):
        make_room(device)
        add_device_times(report, make_model(shape, device, dtype, options.prefix, options.bits), device, options.tokens)
    keep()
    return report


def lines(report: Mapping[str, Any]) -> list[str]:
    """A line per figure."""

    def ms(value: float | None) -> str:
        return "not measured" if value is None else f"{value:.3f} ms"

    told = [
        f"{report['machine']}, {report['shape']}, {report['dtype']}{of_bits(report)}, prefix {report['prefix']}",
        f"bound: {report['weights_gb']:.2f} GB at {report['copy_tb_per_s']:.3f} TB/s: {ms(report['bound_ms'])} a token",
    ]
    if plain := report.get("plain_decoding"):
        told.append(
            f"plain decoding: {ms(plain['wall_ms'])} a token, {plain['share_of_bound']:.1%} of the bound's speed"
        )
    if passes := report.get("passes"):
        device = passes.get("tree_over_plain_device")
        on_device = "not measured" if device is None else f"{device:.2f}"
        told.append(f"{NODES}-node pass over plain: wall {passes['tree_over_plain_wall']:.2f}, device {on_device}")
    for cycle in (report[name] for name in ("plain_decoding", "tree_cycle") if name in report):
        told.append(
            f"cycle of {cycle['nodes']} nodes: wall {ms(cycle['wall_ms'])}, device {ms(cycle.get('device_ms'))}, "
            f"overhead {ms(cycle.get('overhead_ms'))}, slowest {ms(cycle['slowest_ms'])}"
        )
    for name, way in report.get("ways", {}).items():
        if "error" in way:
            told.append(f"passes {name}: {way['error']}")
            continue
        plain, tree = way["wall_ms"]["plain"], way["tree_over_plain_wall"]
        decoding = way["plain_decoding"]
        told.append(
            f"passes {name}: plain {ms(plain)}, {way['share_of_bound']:.1%} of the bound's speed, {NODES} nodes over "
            f"it {tree:.2f}, logits off by {way['off_by']:.1e}; plain decoding {ms(decoding['wall_ms'])} a token, "
            f"{decoding['share_of_bound']:.1%}; overhead of a cycle {ms(way['tree_cycle'].get('overhead_ms'))}"
        )
    if theirs := report.get("transformers"):
        told.append(f"transformers, static cache: {ms(theirs['token_ms'])} a token, {theirs['share_of_bound']:.1%}")
    return told + [f"left out: {part}: {why}" for part, why in report["left_out"].items()]


def of_bits(report: Mapping[str, Any]) -> str:
    return f" with weights in {report['bits']} bits" if "bits" in report else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How good the engine is on a GPU, in a few figures")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b", help="8b: 1b where that does not fit")
    parser.add_argument("--bits", type=int, choices=BITS, help="of weights; without it bfloat16")
    parser.add_argument("--prefix", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="cycles, and passes of each kind, that are timed")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no further part after this")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    report = measure(parser.parse_args(arguments))
    print("\n".join(lines(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
