"""What it brings that ``exact`` works on rows in pieces that wake no threads (spec_sdk/ops/pieces.py).

    python benchmarks/sampling_pieces.py

One verification step (γ = 5, random logits as in benchmarks/sampling.py), in pieces and with each row as one piece,
turn by turn with all of torch's threads: medians of wall time, and their ratio. What it shows depends on how busy the
machine is, so the load is written down. Writes ``results/sampling_pieces-<machine>.json``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import torch

from benchmarks.measuring import RESULTS, write_report
from benchmarks.sampling import INPUT_SETS, SAMPLED, VOCABULARIES, make_step
from benchmarks.support import machine
from benchmarks.support.sampling_rivals import stepper
from benchmarks.support.timing import median_cpu
from spec_sdk.ops import pieces

PIECE = pieces.PIECE
WHOLE = 1 << 40


def cut_at(piece: int, decide: Callable[[int, int], object]) -> Callable[[], object]:
    """The next step, with rows cut into pieces of at most ``piece``."""
    turn = count()

    def call() -> object:
        pieces.PIECE = piece
        seed = next(turn)
        return decide(seed % INPUT_SETS, seed)

    return call


def main() -> int:
    torch.set_grad_enabled(False)
    device = torch.device("cpu")
    report: dict[str, Any] = {
        "schema_version": 1,
        "benchmark": "sampling_pieces",
        **machine.facts(device),
        "load": os.getloadavg(),
        "cases": [],
    }
    print(f"load {report['load'][0]:.1f}\n  ratio   pieces us    whole us")
    for dtype in (torch.float32, torch.bfloat16):
        for vocabulary in VOCABULARIES:
            steps = [make_step(5, vocabulary, dtype, device, SAMPLED, seed) for seed in range(INPUT_SETS)]
            decide = stepper("exact", steps, SAMPLED, {})
            times = median_cpu({"pieces": cut_at(PIECE, decide), "whole": cut_at(WHOLE, decide)}, 4.0)
            pieces.PIECE = PIECE
            report["cases"].append({"vocabulary": vocabulary, "dtype": str(dtype).removeprefix("torch."), **times})
            ratio, each = times["whole"] / times["pieces"], [times[name] * 1e6 for name in ("pieces", "whole")]
            print(f"{ratio:7.2f}{each[0]:12.0f}{each[1]:12.0f}  V={vocabulary} {dtype}", flush=True)
    report["load_after"] = os.getloadavg()
    write_report(RESULTS / f"sampling_pieces-{machine.slug(str(report['machine']))}.json", report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
