"""What it brings that ``exact`` works on rows in pieces that wake no threads (spec_sdk/ops/pieces.py).

    python -m benchmarks.sampling_pieces

One verification step (γ = 5, random logits as in benchmarks.sampling), in pieces and with each row as one piece,
turn by turn with all of torch's threads: medians of wall time, and their ratio. What it shows depends on how busy the
machine is, so the load is written down. Writes ``results/sampling_pieces-<machine>.json``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import count

import torch

from benchmarks.places import RESULTS
from benchmarks.sampling import INPUT_SETS, SAMPLED, VOCABULARIES, make_step
from benchmarks.support.live_table import LiveTable
from benchmarks.support.sampling_rivals import stepper
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import output_path
from spec_sdk.bench.scripts import run_script, script_parser
from spec_sdk.bench.timing import median_seconds
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
    parser = script_parser(__doc__, overrides=None)
    parser.add_argument("--seconds", type=float, default=4.0, help="per case")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    device = torch.device("cpu")
    path = output_path(None, RESULTS, "sampling_pieces", device)
    report = CaseReport(path, "sampling_pieces", device, math.inf, schema_version=1)
    print(f"load {report.content['load'][0]:.1f}; ratio: the time of whole rows over that of pieces")
    table = LiveTable({"ratio": 7, "pieces us": 10, "whole us": 10, "V": 8, "dtype": -8})
    for dtype in (torch.float32, torch.bfloat16):
        for vocabulary in VOCABULARIES:
            steps = [make_step(5, vocabulary, dtype, device, SAMPLED, seed) for seed in range(INPUT_SETS)]
            decide = stepper("exact", steps, SAMPLED, {})
            calls = {"pieces": cut_at(PIECE, decide), "whole": cut_at(WHOLE, decide)}
            times = median_seconds(calls, arguments.seconds)
            pieces.PIECE = PIECE
            case = {"vocabulary": vocabulary, "dtype": str(dtype).removeprefix("torch."), **times}
            report.add(case)
            each = [f"{1e6 * times[name]:.0f}" for name in ("pieces", "whole")]
            table.row(f"{times['whole'] / times['pieces']:.2f}", *each, str(vocabulary), str(case["dtype"]))
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
