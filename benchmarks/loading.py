"""How long a process takes to open a model: read it, and lay its weights out as products read them.

    python -m benchmarks.loading --before 0d237a2
    python -m benchmarks.loading "model.target=/models/Llama-3.2-1B model.dtype=bfloat16 model.weights=int4"

For each set of options (one argument, blanks between them) the seconds from settings to a pipeline, in processes of
their own. A first one, which is not counted, converts the model, times products and fills the system's cache of files;
imports are left out. Figures are medians.

``--before``: an earlier commit, checked out into a worktree of git's; both take turns, a process each. Writes
results/loading.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.places import RESULTS
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script
from spec_sdk.config.composing import settings_for
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry

OPTIONS = (
    "model.weights=int4",
    "model.dtype=bfloat16 model.weights=dense",
    "model.dtype=float32 model.weights=dense",
)


def opened(options: str) -> dict[str, float]:
    """What opening takes in this process: seconds, and MiB of weights."""
    settings, registry = settings_for(["pipeline=vanilla", "backend=cpu", *options.split()]), Registry.discover()
    began = time.perf_counter()
    pipeline = build_pipeline(settings, registry)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "weights_mib": pipeline.models.target.executor.weight_bytes / 2**20}


def compared(options: argparse.Namespace) -> dict[str, Any]:
    """Case → what processes of this tree, and of the earlier commit by turns, measure by this script."""
    # an earlier commit, whose process runs this script too, need not have it
    from benchmarks.support.earlier_commit import by_turns, this_tree_and

    cases: dict[str, Any] = {}
    with this_tree_and(options.before) as trees:
        for case in options.options or OPTIONS:
            rounds = by_turns(trees, options.rounds + 1, [__file__, "--worker", case])
            cases[case] = {
                name: {key: round(statistics.median(one[key] for one in found[1:]), 3) for key in found[0]}
                for name, found in rounds.items()
            }
            if options.before:
                cases[case]["ratio"] = round(cases[case]["now"]["seconds"] / cases[case]["before"]["seconds"], 3)
            print(f"{case}: {cases[case]}", flush=True)
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("options", nargs="*", help="sets of options; without any, those of the default model")
    parser.add_argument("--before", help="an earlier commit to take turns with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_output(parser, RESULTS / "loading.json")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(opened(options.options[0])))
        return 0
    write_report(
        options.output, {**device_facts(torch.device("cpu")), "before": options.before, "cases": compared(options)}
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
