"""Whole captured passes over few rows, with the backend's products of few rows and with the library's.

    python -m benchmarks.gpu.few_rows_passes --output few_rows_passes.json
    TRITON_INTERPRET=1 python -m benchmarks.gpu.few_rows_passes --device cpu --shapes tiny --rows 4    # tries it out

On models of random weights, both by turns in one process, wall time. It says for which numbers of rows
(:data:`spec_sdk_backends.few_rows.ROWS`) the products pay, with all that they have in them, and for how small models
(:data:`spec_sdk_backends.few_rows.LEAST_INPUTS`, which does not count here); single products are measured by
benchmarks.gpu.few_rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.random_model import Model, back_to_prompt, fitting, make_model, make_room, plain_pass, tree_pass
from benchmarks.gpu.timing import wall_s
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.random_models import SHAPES
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk_backends import few_rows
from spec_sdk_backends.cuda_graphs import GraphCapture
from spec_sdk_backends.fused_decoder import FusedDecoder

SCHEMA_VERSION = 1
WAYS = {"library": range(0), "few_rows": range(2, 65)}
"""The numbers of rows that the backend's products are used for."""


def made_way(model: Model, rows: range, device: torch.device) -> Model:
    """The model, with passes, on a GPU captured ones, that use the backend's products for these numbers of rows."""
    plain = model.session.executor
    assert isinstance(plain, TorchExecutor)
    decoder = FusedDecoder(plain.decoder)
    decoder.few_rows = rows
    executor = TorchExecutor(decoder, plain.ops)
    if device.type == "cuda":
        executor = GraphExecutor(decoder, plain.ops, GraphCapture(device))
    session = Session(executor)
    session.prefill(0, model.prompt[:-1])
    return dataclasses.replace(model, session=session)


def of_shape(model: Model, counts: Sequence[int], device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of each pass, by both ways, over a plain pass's; and the largest errors of their logits, beside the
    eager decoder's.
    """
    back_to_prompt(model)
    expected = {count: tree_pass(model, count)().float() for count in counts}
    ways = {name: made_way(model, rows, device) for name, rows in WAYS.items()}
    runs: dict[str, Callable[[], torch.Tensor]] = {"plain": plain_pass(ways["library"])}
    runs |= {f"{name} {count}": tree_pass(way, count) for count in counts for name, way in ways.items()}
    off = {
        f"{name} {count}": float((runs[f"{name} {count}"]().float() - expected[count]).abs().max()) for count in counts
        for name in WAYS
    }  # fmt: skip
    taken = wall_s(runs, model.synchronize, rounds)
    found = []
    for count in counts:
        row: dict[str, Any] = {"rows": count, "plain_ms": 1e3 * taken["plain"]}
        for name in WAYS:
            key = f"{name} {count}"
            row |= {f"{name}_ms": 1e3 * taken[key], f"{name}_over_plain": taken[key] / taken["plain"]}
            row[f"{name}_off_by"] = off[key] / float(expected[count].abs().max())
        found.append(row | {"few_rows_over_library": taken[f"few_rows {count}"] / taken[f"library {count}"]})
    return found


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    began, device = time.monotonic(), torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "few_rows_passes",
        **device_facts(device),
        "prefix": options.prefix,
        "shapes": {},
        "left_out": [],
    }
    for shape in dict.fromkeys(fitting(shape, device) for shape in options.shapes):
        if time.monotonic() - began > options.seconds:
            report["left_out"].append(shape)
            continue
        with mock.patch.object(few_rows, "LEAST_INPUTS", 1):
            rows = of_shape(make_model(shape, device, dtype, options.prefix), options.rows, device, options.rounds)
        report["shapes"][shape] = rows
        make_room(device)
        for row in rows:
            print(
                f"{shape}, {row['rows']} rows: {row['few_rows_ms']:.3f} ms, {row['few_rows_over_library']:.3f} of the "
                f"library's; over a plain pass {row['few_rows_over_plain']:.3f} and {row['library_over_plain']:.3f}; "
                f"logits off by {row['few_rows_off_by']:.1e} and {row['library_off_by']:.1e}",
                flush=True,
            )
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Captured passes over few rows, by our products and the library's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=("8b", "1b", "smollm2"))
    parser.add_argument("--rows", nargs="+", type=int, default=(2, 4, 8, 16, 32, 64), help="of a pass")
    parser.add_argument("--prefix", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--rounds", type=int, default=25, help="passes of each kind, the median of which is taken")
    parser.add_argument("--seconds", type=float, default=100.0, help="begin no further shape after this")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    return 0 if measure(parser.parse_args(arguments))["shapes"] else 1


if __name__ == "__main__":
    sys.exit(main())
