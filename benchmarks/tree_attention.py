"""Tree attention by intervals against an explicit mask, FlexAttention and causal FlashAttention: time and memory.

    python -m benchmarks.tree_attention              # on the GPU if there is one, else on the CPU
    python -m benchmarks.tree_attention --quick      # a smoke run
    python -m benchmarks.tree_attention --tune       # GPU: which block sizes are fastest

Prints a table (ratio first: the rival's time over ours), writes ``results/tree_attention-<device>.json`` and a plot
beside it, and says last which aims are met. Rivals take turns in one process; figures are medians. The paper's shape is
B=10, H=10, D=64, 1,014 random nodes after 10 prompt tokens ("SpecInfer / FlashSpecInfer").

On a GPU it needs ``pip install 'spec-sdk[cuda]'``, for the plot ``pip install 'spec-sdk[benchmarks]'``.

Legend: B batch, N tree nodes, P prompt tokens, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support import attention_report as reporting
from benchmarks.support.attention_inputs import Shape
from benchmarks.support.live_table import LiveTable
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import device_parser, output_path

SCHEMA_VERSION = 1
PROMPT = 10
SIZES = (256, 512, 1014, 2048, 4096, 8192)


def gpu_shapes(quick: bool) -> list[tuple[Shape, bool]]:
    """Shapes in the order of their weight, and whether FlexAttention, which compiles for each, is measured there."""
    if quick:
        return [(Shape(2, 4, 2, 64, 256, PROMPT, "bfloat16"), False)]
    sizes = (1014, 256, 512, 2048, 4096, 8192)
    # it takes longer to compile than all else takes to measure
    paper = [(Shape(10, 10, 10, 64, nodes, PROMPT, "bfloat16"), nodes == 1014) for nodes in sizes]
    alone = [(Shape(1, 10, 10, 64, nodes, PROMPT, "bfloat16"), nodes == 1014) for nodes in (1014, 256, 4096)]
    others = [(Shape(10, 10, 10, 64, 1014, PROMPT, dtype), False) for dtype in ("float16", "float32")]
    others += [(Shape(10, 10, 10, 64, 1014, PROMPT, "bfloat16", "chain"), False)]
    # SmolLM2-135M's heads, and the small trees that speculation drafts
    others += [(Shape(1, 9, 3, 64, nodes, 512, "bfloat16"), nodes == 64) for nodes in (1, 16, 64, 256)]
    others += [(Shape(1, 10, 10, 64, nodes, PROMPT, "bfloat16"), False) for nodes in (16, 64, 512, 2048, 8192)]
    others += [(Shape(10, 10, 10, 64, nodes, PROMPT, "float32"), False) for nodes in (256, 4096)]
    return [*paper, *alone, *others]


def run_gpu(report: CaseReport, table: LiveTable, device: torch.device, quick: bool) -> None:
    from benchmarks.support.cuda_rivals import full_mask_no_longer_fits, measure

    rounds = 10 if quick else 50
    for shape, with_flex in report.in_time(gpu_shapes(quick), label):
        report.add(measure(shape, device, rounds, with_flex))
        show(report.cases[-1], table)
    if not quick:
        report.content["full_mask_no_longer_fits"] = full_mask_no_longer_fits(device)


def label(case: tuple[Shape, bool]) -> str:
    return str(case[0])


def show(case: reporting.Case, table: LiveTable) -> None:
    for row in reporting.case_rows(case):
        table.row(*row)
    for line in reporting.left_out_lines(case):
        print(line, flush=True)


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


def run_cpu(report: CaseReport, table: LiveTable, quick: bool) -> None:
    from benchmarks.support.attention_memory import measure_in_child
    from benchmarks.support.cpu_rivals import measure

    for shape, with_flex in report.in_time(cpu_shapes(quick), label):
        report.add(measure(shape, seconds=0.2 if quick else 1.5 if shape.nodes <= 64 else 6.0, with_flex=with_flex))
        show(report.cases[-1], table)
    for nodes in (1024, 4096) if quick else SIZES:
        row: dict[str, Any] = {"nodes": nodes}
        try:
            for rival in ("ours", "sdpa"):
                row[rival] = measure_in_child(rival, nodes)
        except (RuntimeError, OSError) as error:
            report.leave_out(f"peak memory at {nodes} nodes: {error}")
            continue
        report.content["memory"].append(row)
    print("\nratio: resident memory of one sequence with an explicit mask over ours")
    memory = LiveTable(reporting.MEMORY_COLUMNS)
    for row in report.content["memory"]:
        memory.row(*reporting.memory_row(row))
    report.leave_out("on the CPU one tree serves all sequences of a batch: the reference op takes one mask per pass")
    report.leave_out("GPU: our kernel, the full mask in it, causal FlashAttention (no CUDA device was asked for)")


def run_tuning(report: CaseReport, device: torch.device, quick: bool) -> None:
    from benchmarks.support import tune

    report.content["tuning"] = []
    print("ratio: the time with today's tiling over that with the best")
    table = LiveTable(tune.COLUMNS)
    shapes, compiled = tune.shapes(quick), set[Any]()
    for shape in report.in_time(shapes):
        if (kind := tune.compiled_alike(shape)) not in compiled:
            compiled.add(kind)
            tune.compile_ahead([other for other in shapes if tune.compiled_alike(other) == kind])
        found = tune.sweep(shape, device)
        report.content["tuning"].append(found)
        report.write()
        table.row(*tune.row(found))


def make_backends_importable() -> None:
    """The package registers its plugins through pluggy when it is imported; its kernels need none of that."""
    if importlib.util.find_spec("pluggy") is None:
        package = types.ModuleType("spec_sdk_backends")
        package.__path__ = [str(Path(__file__).parents[1] / "plugins" / "backends" / "spec_sdk_backends")]
        sys.modules["spec_sdk_backends"] = package


def main() -> int:
    parser = device_parser(__doc__, seconds=480.0)
    parser.add_argument("--tune", action="store_true", help="GPU: sweep the kernel's block sizes instead")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    arguments = parser.parse_args()
    # read when triton is imported, which is yet to come; times of interpreted kernels mean nothing
    os.environ.pop("TRITON_INTERPRET", None)
    device = torch.device("cuda" if arguments.tune else arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("error: --device cuda and --tune need a CUDA device that torch sees", file=sys.stderr)
        return 2
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    make_backends_importable()
    kind = "tuning" if arguments.tune else "quick" if arguments.quick else ""
    path = output_path(arguments.output, RESULTS, "tree_attention", device, kind)
    facts = {"schema_version": SCHEMA_VERSION, "quick": arguments.quick, "memory": [], "full_mask_no_longer_fits": None}
    report = CaseReport(path, "tree_attention", device, arguments.seconds, **facts)
    content = report.content
    print(f"{content['machine']}; torch {content['torch']}, triton {content['triton']}")
    if arguments.tune:
        run_tuning(report, device, arguments.quick)
        report.finish()
        return 0
    print("ratio: the rival's time over ours")
    table = LiveTable(reporting.COLUMNS)
    if device.type == "cuda":
        run_gpu(report, table, device, arguments.quick)
    else:
        run_cpu(report, table, arguments.quick)
    aims = reporting.gpu_aims(report.cases if device.type == "cuda" else [], content["full_mask_no_longer_fits"])
    aims += reporting.cpu_aims(report.cases if device.type == "cpu" else [], content["memory"])
    report.finish([*aims, reporting.mask_aim(report.cases)])
    reporting.plot(content, path.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
