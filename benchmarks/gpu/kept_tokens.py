"""Which tokens top-k, top-p and min-p keep, by one launch without sorting, against torch's sort, row by row the same.

    python -m benchmarks.gpu.kept_tokens --output kept_tokens.json
    python -m benchmarks.gpu.kept_tokens --device cpu --quick     # tries it out, in Triton's interpreter: no times

Rows: one, as plain decoding has; six, a drafted chain's with its root; 70, a tree's of 64 nodes with its draft's.
Peaked logits are as an answer's are; of flat ones more may be kept than the kernel has room for side by side, and it
reads the row again and again. Figures are medians of wall time with the device's part, by turns; the kernel's also
inside a CUDA graph.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.gpu.timing import as_ms, waiting, wall_s
from spec_sdk.bench.device_scripts import device_parser
from spec_sdk.bench.machine import device_facts
from spec_sdk.contracts import SamplingParams
from spec_sdk.ops import Ops
from spec_sdk.ops.kept_tokens import kept, numbers_of

SCHEMA_VERSION = 1
SAMPLINGS = {
    "top-p 0.9": SamplingParams(0.8, top_p=0.9),
    "top-k 50": SamplingParams(0.8, top_k=50),
    "top-k 50, top-p 0.95": SamplingParams(0.8, top_k=50, top_p=0.95),
    "min-p 0.05": SamplingParams(0.8, min_p=0.05),
}
SCALES = {"peaked": 3.0, "flat": 0.5}
ROWS, VOCABULARIES = (1, 6, 70), (49_152, 128_256)
QUICK_ROWS, QUICK_VOCABULARIES = (2,), (1_000,)


def of_case(
    device: torch.device, dtype: torch.dtype, rows: int, vocabulary: int, sampling: str, logits: str, rounds: int
) -> dict[str, Any]:
    from spec_sdk_backends.triton_ops import TritonOps

    rng = torch.Generator().manual_seed(rows + vocabulary)
    logits_RV = (SCALES[logits] * torch.randn((rows, vocabulary), generator=rng)).to(device, dtype)
    shaping_14 = torch.tensor([numbers_of(SAMPLINGS[sampling])], dtype=torch.float64, device=device)
    ops, reference = TritonOps(), Ops()

    def by_kernel() -> tuple[torch.Tensor, torch.Tensor]:
        return ops.least_kept(logits_RV, shaping_14)

    def by_sorting() -> tuple[torch.Tensor, torch.Tensor]:
        return reference.least_kept(logits_RV, shaping_14)

    counts = [kept(logits_RV.float(), *run()).sum(-1) for run in (by_kernel, by_sorting)]
    runs: dict[str, Any] = {"kernel": by_kernel, "sort": by_sorting}
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            by_kernel()
        runs["kernel in a graph"] = graph.replay
    return {
        "rows": rows,
        "vocabulary": vocabulary,
        "dtype": str(dtype).removeprefix("torch."),
        "sampling": sampling,
        "logits": logits,
        "kept": int(counts[1].max()),
        # a border within rounding may keep one token more
        "off_by": int((counts[0] - counts[1]).abs().max()),
        "wall_ms": as_ms(wall_s(runs, waiting(device), rounds)),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All cases that there is time for; the report is written after each."""
    began, device = time.monotonic(), torch.device(options.device)
    report: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **device_facts(device), "cases": [], "left_out": 0}
    rows, vocabularies = (QUICK_ROWS, QUICK_VOCABULARIES) if options.quick else (ROWS, VOCABULARIES)
    dtypes = (torch.bfloat16,) if options.quick else (torch.bfloat16, torch.float32)
    for case in itertools.product(dtypes, vocabularies, rows, SCALES, SAMPLINGS):
        dtype, vocabulary, row_count, logits, sampling = case
        if time.monotonic() - began > options.seconds:
            report["left_out"] += 1
            continue
        found = of_case(device, dtype, row_count, vocabulary, sampling, logits, 2 if options.quick else 30)
        report["cases"].append(found)
        print(line(found), flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def line(case: Mapping[str, Any]) -> str:
    times = " | ".join(f"{name} {value:.3f} ms" for name, value in case["wall_ms"].items())
    what = f"{case['rows']} rows of {case['vocabulary']} {case['dtype']}, {case['logits']}, {case['sampling']}"
    return f"{what}: keeps {case['kept']}, off by {case['off_by']}: {times}"


def main(arguments: list[str] | None = None) -> int:
    options = device_parser(__doc__, seconds=60.0).parse_args(arguments)
    if options.device == "cpu":
        # read when triton is imported, which is yet to come
        os.environ.setdefault("TRITON_INTERPRET", "1")
    report = measure(options)
    return int(not report["cases"] or any(case["off_by"] > 1 for case in report["cases"]))


if __name__ == "__main__":
    sys.exit(main())
