"""What a pass costs whose weights lie in pages of 2 MiB, in units of the same pass with pages of 4 KiB.

    python -m benchmarks.huge_pages model.weights=int4 "model.dtype=bfloat16 model.weights=dense"

For each set of options (one argument, blanks between them): target passes over N nodes behind 256 tokens, both kinds of
pages by turns in one process. Figures are medians; ``pages_2_mib_mib`` are the MiB that the system gave in large
pages. Writes results/huge_pages.json.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.passes import TOKENS, scoring
from benchmarks.places import RESULTS
from spec_sdk.bench import timing
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.model.session import Session
from spec_sdk.tree import TokenTree
from spec_sdk_backends.native import huge_pages

NODES = (1, 2, 4, 8)
PREFIX = 256


def main() -> int:
    parser = script_parser(__doc__, output=RESULTS / "huge_pages.json", overrides=["model.weights=int4"])
    parser.add_argument("--seconds", type=float, default=2.0, help="per comparison")
    arguments = parser.parse_intermixed_args()
    report: dict[str, Any] = {"prefix": PREFIX, "options": {}}
    for options in arguments.overrides:
        with mock.patch.object(huge_pages, "empty", lambda shape, dtype: torch.empty(*shape, dtype=dtype)):
            small, _ = session_of(options)
        before = large_mib()
        large, facts = session_of(options)
        report |= facts
        passes: dict[str, Any] = {"pages_2_mib_mib": large_mib() - before}
        print(f"{options}: {passes['pages_2_mib_mib']} MiB in large pages")
        for nodes in NODES:
            tree = TokenTree.chain(TOKENS[0], TOKENS[1:nodes])
            calls = {"small": scoring(small, tree), "large": scoring(large, tree)}
            taken = timing.median_seconds(calls, arguments.seconds, clock=time.perf_counter)
            passes[str(nodes)] = {
                "small_ms": round(1e3 * taken["small"], 3),
                "large_ms": round(1e3 * taken["large"], 3),
                "ratio": round(taken["large"] / taken["small"], 3),
            }
            print(f"  {nodes} nodes: {passes[str(nodes)]}", flush=True)
        report["options"][options] = passes
    write_report(arguments.output, report)
    return 0


def session_of(options: str) -> tuple[Session, dict[str, Any]]:
    """A session of the target behind a prefix, and what a report says of it."""
    pipeline = build("pipeline=vanilla", "backend=cpu", "backend.native=true", *options.split())
    session = pipeline.models.session(pipeline.models.target)
    session.reserve(1, len(TOKENS))
    session.prefill(0, TOKENS[:PREFIX])
    return session, pipeline_facts(pipeline)


def large_mib() -> int:
    """This process's memory in large pages, MiB; 0 where the system does not say."""
    path = Path("/proc/self/smaps_rollup")
    found = re.search(r"AnonHugePages: +(\d+) kB", path.read_text()) if path.exists() else None
    return int(found[1]) >> 10 if found else 0


if __name__ == "__main__":
    sys.exit(run_script(main))
