"""task=serve under load: no answer lost, mixed or wrong, and memory that stays flat.

    python -m benchmarks.serving_load

Starts a server of its own on a free port of this machine. ``--count`` requests, ``--concurrency`` at a time: whole
answers, streams, slow readers, clients that leave in the middle, malformed bodies. Then each that was answered is asked
again by itself, and must have the same text, finish reason and number of tokens. ``--rounds`` more loads follow, with
the server's resident memory after each. Tokens per second under load and one after the other are of the same run.
The policy is fixed and the drafter looks at a request's own tokens only: then sampled answers do not depend on their
neighbours either (docs/engine.md). Writes results/serving_load.json; the exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.places import RESULTS
from benchmarks.support.serving_clients import Case, Outcome, answered, cases_of, faults, load
from spec_sdk.bench.machine import hardware_name, machine_facts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script, script_parser
from spec_sdk.prompts import read_prompt_texts

DEFAULTS = ("pipeline=prompt_lookup", "policy=fixed", "model.weights=dense")
SETTLE_S = 2.0
"""After which a client's leaving has reached the engine."""


def main() -> int:
    parser = load_parser(__doc__, count=200, output=RESULTS / "serving_load.json")
    parser.add_argument("--rounds", type=int, default=0, help="further loads, for the memory they leave")
    options = parser.parse_intermixed_args()
    prompts = short_prompts(options)
    cases = cases_of(options.count, prompts, options.new_tokens, options.seed)
    with server(options.overrides) as (process, port):
        began = time.perf_counter()
        outcomes = asyncio.run(load(cases, port, options.concurrency))
        under_load_s = time.perf_counter() - began
        began = time.perf_counter()
        alone = asyncio.run(by_themselves(cases, port))
        alone_s = time.perf_counter() - began
        wrong = faults(cases, outcomes, alone)
        memory = [resident(process)]
        for number in range(options.rounds):
            again = cases_of(options.count, prompts, options.new_tokens, options.seed + number + 1)
            wrong += faults(again, asyncio.run(load(again, port, options.concurrency)), [None] * len(again))
            time.sleep(SETTLE_S)
            memory.append(resident(process))
            print(f"round {number + 1}: {memory[-1] / 2**20:.0f} MiB", flush=True)
    report = {
        **machine_facts(hardware_name(torch.device("cpu"))),
        "overrides": list(options.overrides),
        "requests": len(cases),
        "concurrency": options.concurrency,
        "kinds": {kind: sum(case.kind == kind for case in cases) for kind in {case.kind for case in cases}},
        "compared_with_alone": sum(own is not None for own in alone),
        "wrong": wrong,
        "under_load": figures(outcomes, under_load_s),
        "one_after_the_other": figures([own for own in alone if own is not None], alone_s),
        "further_rounds": options.rounds,
        "resident_bytes": memory,
    }
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(cases)} requests, {len(wrong)} wrong", flush=True)
    write_report(options.output, report)
    return 1 if wrong else 0


def load_parser(doc: str | None, count: int, output: Path) -> argparse.ArgumentParser:
    """The options of a script that sends loads of ``count`` requests to a server of its own."""
    parser = script_parser(doc, count=count, new_tokens=16, output=output, overrides=DEFAULTS)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--longest", type=int, default=200, help="characters of a prompt")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def short_prompts(options: argparse.Namespace) -> list[str]:
    return [text for text in read_prompt_texts(str(options.prompts)) if len(text) <= options.longest]


@contextlib.contextmanager
def server(overrides: Sequence[str]) -> Iterator[tuple[psutil.Process, int]]:
    """A server as a process of its own, and its port."""
    command = [sys.executable, "-m", "spec_sdk", "task=serve", "task.port=0", "task.access_log=false", *overrides]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield psutil.Process(process.pid), _port_of(process)
        finally:
            process.terminate()


def _port_of(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        print(line, end="", file=sys.stderr)
        if found := re.search(r"at http://127\.0\.0\.1:(\d+)/v1", line):
            return int(found[1])
    raise RuntimeError("the server ended before it served")


async def by_themselves(cases: Sequence[Case], port: int) -> list[Outcome | None]:
    """Every case that is to be answered, one after the other; None for the others."""
    due = [case if case.kind not in ("leaver", "malformed") else None for case in cases]
    return [None if case is None else await answered(case.alone(), port) for case in due]


def figures(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Tokens that clients were told of, by the seconds that all took together."""
    tokens = sum(outcome.usage.get("completion_tokens", 0) for outcome in outcomes)
    first = [outcome.first_token_s for outcome in outcomes if outcome.first_token_s is not None]
    return {
        "seconds": seconds,
        "completion_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "median_first_token_s": statistics.median(first) if first else None,
    }


def resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


if __name__ == "__main__":
    raise SystemExit(run_script(main))
