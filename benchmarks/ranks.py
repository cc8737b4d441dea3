"""Several CPU processes against one of them, same prompts, one thread each, as a ratio.

    python -m benchmarks.ranks --processes 2 --count 2 --new-tokens 32

The leader process measures in turn: a pipeline of its own, the same one with as many threads as there are processes,
and the same one spread over all processes. Writes results/ranks.json: machine, microseconds of a sum over all of them
of a row as long as the target's hidden states, whether the one process rounds its rows to 8 bits, and per pipeline the
ratios of tokens per second to those of one thread, of every round and their medians, and whether the tokens are the
same, as they are with ``backend.activations=exact``.
``--gloo``: the processes share no memory, as those of several machines.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support.processes import led, start_others
from spec_sdk.bench.answers import Prompt, answer, events_of, spread_prompts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.metrics import summarise
from spec_sdk.pipeline import Pipeline

PROGRAM = ("-m", "benchmarks.ranks")
ONE_THREAD = "backend.threads=1"


def measure(pipeline: Pipeline, prompts: Sequence[Prompt], new_tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Summary and tokens of all prompts."""
    answers = answer(pipeline, prompts, new_tokens)
    return summarise(events_of(answers)), [each.tokens for each in answers]


def compared(
    alone: Pipeline, spread: Pipeline, prompts: Sequence[Prompt], new_tokens: int, processes: int
) -> dict[str, Any]:
    """One round: one process, with one thread and with several, then all processes, which wait in between."""
    one, expected = measure(alone, prompts, new_tokens)
    torch.set_num_threads(processes)
    threads, _ = measure(alone, prompts, new_tokens)
    torch.set_num_threads(1)
    many, tokens = measure(spread, prompts, new_tokens)
    before = one["tokens_per_second"]
    return {
        "speedup": many["tokens_per_second"] / before,
        "speedup_of_threads": threads["tokens_per_second"] / before,
        "one": one,
        "threads": threads,
        "spread": many,
        "same_tokens": tokens == expected,
    }


def sum_us(pipeline: Pipeline, count: int = 500) -> float:
    """Mean time of a sum over the ranks, all of which call this together."""
    row_M = torch.ones(1, pipeline.models.target.executor.config.hidden_size)
    for _ in range(20):
        pipeline.ranks.all_reduce(row_M)
    began = time.perf_counter()
    for _ in range(count):
        pipeline.ranks.all_reduce(row_M)
    return 1e6 * (time.perf_counter() - began) / count


def main() -> int:
    parser = script_parser(__doc__, count=2, new_tokens=32, output=RESULTS / "ranks.json")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gloo", action="store_true", help="exchange over connections alone")
    parser.add_argument("--pipelines", nargs="*", default=["vanilla", "sd_chain", "easyspec_paper", "easyspec_tree"])
    arguments = parser.parse_intermixed_args()
    leads = "RANK" not in os.environ
    options = [ONE_THREAD, *arguments.overrides]
    names = arguments.pipelines
    memory = ["backend.shared_memory=false"] if arguments.gloo else []
    # before this process is one of several
    alone = {name: build(f"pipeline={name}", "backend=cpu", *options) for name in names if leads}
    others = start_others(arguments.processes, PROGRAM) if leads else []
    spread = {name: build(f"pipeline={name}", "backend=accelerate", *memory, *options) for name in names}
    prompts = spread_prompts(arguments.prompts, arguments.count)
    first = spread[names[0]]
    report: dict[str, Any] = {
        **pipeline_facts(first),
        "cpus": os.cpu_count(),
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "sum_us": sum_us(first),
        # several do not, unless backend.activations asks for it
        "one_rounds_rows": any(each.rounds_rows for each in alone.values()),
        "pipelines": {},
    }

    def rounds(name: str) -> list[dict[str, Any]]:
        measure(spread[name], prompts[:1], 4)
        given = alone[name], spread[name], prompts, arguments.new_tokens, arguments.processes
        return [compared(*given) for _ in range(arguments.rounds)]

    for name in names:
        found = led(spread[name], lambda name=name: rounds(name))
        if found is None:
            continue
        ratios = ("speedup", "speedup_of_threads")
        medians = {ratio: statistics.median(each[ratio] for each in found) for ratio in ratios}
        same = all(each["same_tokens"] for each in found)
        report["pipelines"][name] = {**medians, "same_tokens": same, "rounds": found}
        each = ", ".join(f"{entry['speedup']:.2f}" for entry in found)
        print(
            f"{name:24} {medians['speedup']:.2f}x one process of one thread ({each}), that with "
            f"{arguments.processes} threads {medians['speedup_of_threads']:.2f}x; same tokens: {same}",
            flush=True,
        )
    if leads:
        # what else ran here: processes that wait for each other suffer from it more than one alone
        report["load_average_1min"] = os.getloadavg()[0]
        write_report(arguments.output, report)
    first.ranks.close()
    return max((other.wait() for other in others), default=0)


if __name__ == "__main__":
    sys.exit(run_script(main))
