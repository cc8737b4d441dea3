"""What a prompt's prefill takes on this processor: natively, 64 rows at a time, over whole passes, whose attention is
torch's, and products too where they are faster.

    python -m benchmarks.prefill_in_parts
    SPEC_SDK_AMX=0 python -m benchmarks.prefill_in_parts --forms bfloat16 --output without_amx.json

For each form of the target's weights and each length of a prompt, in turn in one process; also which way
``deterministic=false`` goes. Writes results/prefill_in_parts.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.passes import prefilling
from benchmarks.places import RESULTS
from spec_sdk.bench import timing
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline
from spec_sdk_backends.native.decoder import NativeDecoder

FORMS = {
    "float32": ("model.dtype=float32", "model.weights=dense"),
    "bfloat16": ("model.dtype=bfloat16", "model.weights=dense"),
    "4 bits": ("model.dtype=float32", "model.weights=int4", "backend.activations=exact"),
    "4 bits, rounded rows": ("model.dtype=float32", "model.weights=int4", "backend.activations=int8"),
}


def main() -> int:
    parser = script_parser(__doc__, output=RESULTS / "prefill_in_parts.json")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="of the target's weights")
    parser.add_argument("--lengths", type=int, nargs="+", default=[96, 128, 256, 512, 1024, 2048, 4096], help="tokens")
    parser.add_argument("--seconds", type=float, default=3.0, help="per comparison, five rounds at least")
    arguments = parser.parse_intermixed_args()
    report: dict[str, Any] = {"amx": os.environ.get("SPEC_SDK_AMX", "unset"), "load_average": os.getloadavg()[0]}
    for form in arguments.forms:
        pipeline = build("pipeline=vanilla", "backend=cpu", *FORMS[form], *arguments.overrides)
        report |= {key: value for key, value in pipeline_facts(pipeline).items() if key != "dtype"}
        report[form] = figures_of(pipeline, form, arguments)
    write_report(arguments.output, report)
    return 0


def figures_of(pipeline: Pipeline, form: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of both ways and their ratio, by the length of the prompt. Raises UserError."""
    decoder = getattr(pipeline.models.target.executor, "decoder", None)
    if not isinstance(decoder, NativeDecoder):
        raise UserError(f"the native kernels do not run {pipeline.target_name}: {pipeline.backend.describe()}")
    unasked, found = decoder.in_parts, {}
    for length in arguments.lengths:
        call = prefilling(pipeline, [1 + 7 * i % 1000 for i in range(length)])
        ways = {name: of_way(decoder, in_parts, call) for name, in_parts in (("whole", False), ("parts", True))}
        taken = timing.median_seconds(ways, arguments.seconds)
        found[str(length)] = {
            **{f"{name}_ms": round(1e3 * seconds, 1) for name, seconds in taken.items()},
            "parts_over_whole": round(taken["parts"] / taken["whole"], 2),
        }
        print(f"{form}, {length} tokens: {found[str(length)]}", flush=True)
    return {"in_parts_unasked": unasked, "tokens": found}


def of_way(decoder: NativeDecoder, in_parts: bool, call: Callable[[], object]) -> Callable[[], object]:
    def chosen() -> None:
        decoder.in_parts = in_parts
        call()

    return chosen


if __name__ == "__main__":
    sys.exit(run_script(main))
