"""Tree attention by intervals against an explicit mask, FlexAttention and causal FlashAttention: time and memory.

    python benchmarks/tree_attention.py              # on the GPU if there is one, else on the CPU
    python benchmarks/tree_attention.py --quick      # a smoke run
    python benchmarks/tree_attention.py --tune       # GPU: which block sizes are fastest

Prints a table (ratio first: the rival's time over ours), writes ``results/tree_attention-<device>.json`` and a plot
beside it, and says last which aims are met. Rivals take turns in one process; figures are medians. The paper's shape is
B=10, H=10, D=64, 1,014 random nodes after 10 prompt tokens ("SpecInfer / FlashSpecInfer").

On a GPU it needs ``pip install 'spec-sdk[cuda]'``, for the plot ``pip install 'spec-sdk[benchmarks]'``.

Legend: B batch, N tree nodes, P prompt tokens, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

# a checkout that is not installed will do
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "backends"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.support import attention_report as reporting
from benchmarks.support import machine
from benchmarks.support.attention_inputs import Shape

ROOT = Path(__file__).parents[1]
SCHEMA_VERSION = 1
PROMPT = 10
SIZES = (256, 512, 1014, 2048, 4096, 8192)


class Run:
    """The report under way. It is written after every case: an interrupted run keeps what it had."""

    def __init__(self, device: torch.device, path: Path, arguments: argparse.Namespace) -> None:
        self.path, self.began = path, time.monotonic()
        self.seconds: float = arguments.seconds
        self.report: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "benchmark": "tree_attention",
            **machine.facts(device),
            "quick": arguments.quick,
            "cases": [],
            "memory": [],
            "full_mask_no_longer_fits": None,
            "left_out": [],
            "aims": [],
        }

    def add(self, case: dict[str, Any]) -> None:
        self.report["cases"].append(case)
        print("\n".join(reporting.case_lines(case)), flush=True)
        self.write()

    def leave_out(self, what: str) -> None:
        self.report["left_out"].append(what)
        print(f"left out: {what}", flush=True)

    def is_over_time(self) -> bool:
        return time.monotonic() - self.began > self.seconds

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")


def gpu_shapes(quick: bool) -> list[tuple[Shape, bool]]:
    """Shapes in the order of their weight, and whether FlexAttention, which compiles for each, is measured there."""
    if quick:
        return [(Shape(2, 4, 2, 64, 256, PROMPT, "bfloat16"), False)]
    paper = [(Shape(10, 10, 10, 64, nodes, PROMPT, "bfloat16"), True) for nodes in (1014, 256, 512, 2048, 4096, 8192)]
    alone = [(Shape(1, 10, 10, 64, nodes, PROMPT, "bfloat16"), True) for nodes in (1014, 256, 4096)]
    others = [(Shape(10, 10, 10, 64, 1014, PROMPT, dtype), True) for dtype in ("float16", "float32")]
    others += [(Shape(10, 10, 10, 64, 1014, PROMPT, "bfloat16", "chain"), True)]
    # SmolLM2-135M's heads, and the small trees that speculation drafts
    others += [(Shape(1, 9, 3, 64, nodes, 512, "bfloat16"), nodes == 64) for nodes in (1, 16, 64, 256)]
    others += [(Shape(1, 10, 10, 64, nodes, PROMPT, "bfloat16"), False) for nodes in (16, 64, 512, 2048, 8192)]
    others += [(Shape(10, 10, 10, 64, nodes, PROMPT, "float32"), False) for nodes in (256, 4096)]
    return [*paper, *alone, *others]


def run_gpu(run: Run, device: torch.device, quick: bool) -> None:
    from benchmarks.support.cuda_rivals import full_mask_no_longer_fits, measure

    rounds = 10 if quick else 50
    for shape, with_flex in gpu_shapes(quick):
        if run.is_over_time():
            run.leave_out(f"{shape}: no time left of {run.seconds:.0f} s")
            continue
        run.add(measure(shape, device, rounds, with_flex))
    if not quick:
        run.report["full_mask_no_longer_fits"] = full_mask_no_longer_fits(device)


def cpu_shapes(quick: bool) -> list[tuple[Shape, bool]]:
    """Small trees of the paper's heads and of SmolLM2-135M's (9 query heads, 3 KV heads), then the paper's shape."""
    if quick:
        return [(Shape(1, 9, 3, 64, 16, PROMPT, "float32"), False), (Shape(1, 4, 4, 32, 300, PROMPT, "float32"), False)]
    small = [
        (Shape(1, heads, kv_heads, 64, nodes, prefix, dtype), False)
        for dtype in ("float32", "bfloat16")
        for heads, kv_heads in ((10, 10), (9, 3))
        for prefix in (PROMPT, 512)
        for nodes in (1, 2, 8, 16, 32, 64)
    ]
    large = [(Shape(1, 10, 10, 64, nodes, PROMPT, "float32"), nodes in (256, 1014, 4096)) for nodes in SIZES]
    batch = [(Shape(10, 10, 10, 64, nodes, PROMPT, "float32"), nodes == 1014) for nodes in (256, 1014, 2048)]
    return [*small, *large, *batch]


def run_cpu(run: Run, quick: bool) -> None:
    from benchmarks.support.cpu_rivals import measure
    from benchmarks.support.peak_memory import measure_in_child

    for shape, with_flex in cpu_shapes(quick):
        if run.is_over_time():
            run.leave_out(f"{shape}: no time left of {run.seconds:.0f} s")
            continue
        run.add(measure(shape, seconds=0.2 if quick else 1.5 if shape.nodes <= 64 else 6.0, with_flex=with_flex))
    for nodes in (1024, 4096) if quick else SIZES:
        row: dict[str, Any] = {"nodes": nodes}
        try:
            for rival in ("ours", "sdpa"):
                row[rival] = measure_in_child(rival, nodes)
        except (RuntimeError, OSError) as error:
            run.leave_out(f"peak memory at {nodes} nodes: {error}")
            continue
        run.report["memory"].append(row)
    print("\n".join(reporting.memory_lines(run.report["memory"])))
    run.leave_out("on the CPU one tree serves all sequences of a batch: the reference op takes one mask per pass")
    run.leave_out("GPU: our kernel, the full mask in it, causal FlashAttention (no CUDA device was asked for)")


def make_backends_importable() -> None:
    """The package registers its plugins through pluggy when it is imported; its kernels need none of that."""
    if importlib.util.find_spec("pluggy") is None:
        package = types.ModuleType("spec_sdk_backends")
        package.__path__ = [str(ROOT / "plugins" / "backends" / "spec_sdk_backends")]
        sys.modules["spec_sdk_backends"] = package


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="few small shapes, in under 30 s")
    parser.add_argument("--tune", action="store_true", help="GPU: sweep the kernel's block sizes instead")
    parser.add_argument("--seconds", type=float, default=480.0, help="start no further case after so long")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--output", type=Path, help="JSON file (default: results/tree_attention-<device>.json)")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    # read when triton is imported, which is yet to come; times of interpreted kernels mean nothing
    os.environ.pop("TRITON_INTERPRET", None)
    available = torch.cuda.is_available()
    if (arguments.device == "cuda" or arguments.tune) and not available:
        print("error: --device cuda and --tune need a CUDA device that torch sees", file=sys.stderr)
        return 2
    device = torch.device("cuda" if available and arguments.device != "cpu" else "cpu")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    make_backends_importable()
    name = machine.slug(machine.device_name(device))
    kind = "tuning" if arguments.tune else "quick" if arguments.quick else ""
    default = ROOT / "benchmarks" / "results" / f"tree_attention-{name}{'-' if kind else ''}{kind}.json"
    run = Run(device, arguments.output or default, arguments)
    print(f"{run.report['machine']}; torch {run.report['torch']}, triton {run.report['triton']}")
    if arguments.tune:
        from benchmarks.support.tune import tune

        run.report["tuning"] = []
        for sweep in tune(device, arguments.quick):
            run.report["tuning"].append(sweep)
            run.write()
            if run.is_over_time():
                run.leave_out(f"further shapes: no time left of {run.seconds:.0f} s")
                run.write()
                break
        print(f"written: {run.path}")
        return 0
    print(reporting.HEADING)
    if device.type == "cuda":
        run_gpu(run, device, arguments.quick)
    else:
        run_cpu(run, arguments.quick)
    report = run.report
    report["aims"] = reporting.gpu_aims(
        report["cases"] if device.type == "cuda" else [], report["full_mask_no_longer_fits"]
    )
    report["aims"] += reporting.cpu_aims(report["cases"] if device.type == "cpu" else [], report["memory"])
    report["aims"].append(reporting.mask_aim(report["cases"]))
    run.write()
    print(f"written: {run.path}")
    reporting.plot(report, run.path.with_suffix(".svg"))
    for line in report["aims"]:
        print(f"{line['result']:18} {line['aim']}: {line['figure']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
