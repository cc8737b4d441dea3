"""task=serve for a long time: memory that stays flat.

    python -m benchmarks.serving_soak --minutes 20

Starts a server of its own on a free port of this machine and sends it the traffic of benchmarks.serving_load, without a
pause, ``--concurrency`` requests at a time: whole answers, streams, streams with the token trees of every step, slow
readers, clients that leave in the middle, malformed bodies. Every load has prompts and options of its own. Meanwhile
the server's resident memory is read every ``--every`` seconds. No time is measured: it may run beside other work.

``growth_bytes`` is the median of the last quarter's readings less that of the second quarter's: the first has caches
that fill. ``slope_bytes_per_hour`` is that of a straight line through the readings after the first quarter. Writes
results/serving_soak.json; the exit status is 1 if an answer was wrong or lost, or if growth is beyond
``--most-growth-mib``.
"""

from __future__ import annotations

import asyncio
import collections
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.serving_load import load_parser, resident, server, short_prompts
from benchmarks.support.serving_clients import KINDS, cases_of, faults, load
from spec_sdk.bench.machine import hardware_name, machine_facts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script

MIB = 2**20


def main() -> int:
    parser = load_parser(__doc__, count=80, output=RESULTS / "serving_soak.json")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two readings of memory")
    parser.add_argument("--most-growth-mib", type=float, default=16.0)
    options = parser.parse_intermixed_args()
    prompts = short_prompts(options)
    readings: list[tuple[float, int]] = []
    statuses: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with server(options.overrides) as (process, port):
        began, ended = time.monotonic(), threading.Event()

        def watch() -> None:
            while not ended.wait(options.every):
                readings.append((time.monotonic() - began, resident(process)))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            number = options.seed
            while time.monotonic() - began < 60 * options.minutes:
                cases = cases_of(options.count, prompts, options.new_tokens, number)
                got = asyncio.run(load(cases, port, options.concurrency))
                wrong += faults(cases, got, [None] * len(cases))
                kinds.update(case.kind for case in cases)
                statuses.update(str(outcome.status) for outcome in got)
                number += 1
                print(f"{time.monotonic() - began:.0f} s: {resident(process) / MIB:.0f} MiB", flush=True)
        finally:
            ended.set()
            watching.join()
    growth, slope = growth_of(readings)
    report = {
        **machine_facts(hardware_name(torch.device("cpu"))),
        "overrides": list(options.overrides),
        "minutes": options.minutes,
        "concurrency": options.concurrency,
        "requests": sum(kinds.values()),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "statuses": dict(sorted(statuses.items())),
        "wrong": wrong,
        "growth_bytes": growth,
        "slope_bytes_per_hour": slope,
        "readings": [{"seconds": round(at, 1), "resident_bytes": size} for at, size in readings],
    }
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{report['requests']} requests, {len(wrong)} wrong; growth {growth / MIB:.1f} MiB, {slope / MIB:.1f} MiB/h")
    write_report(options.output, report)
    return 1 if wrong or growth > options.most_growth_mib * MIB else 0


def growth_of(readings: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Bytes by which the last quarter's median is above the second's, and bytes per hour after the first quarter.

    ``readings``: seconds and bytes, at least eight of them. Raises ValueError for fewer.
    """
    if len(readings) < 8:
        raise ValueError(f"{len(readings)} readings say nothing of growth; let it run for longer, or read more often")
    quarter = len(readings) // 4
    sizes: list[Any] = [size for _, size in readings]
    growth = statistics.median(sizes[-quarter:]) - statistics.median(sizes[quarter : 2 * quarter])
    line = statistics.linear_regression([at for at, _ in readings[quarter:]], sizes[quarter:])
    return growth, 3600 * line.slope


if __name__ == "__main__":
    raise SystemExit(run_script(main))
