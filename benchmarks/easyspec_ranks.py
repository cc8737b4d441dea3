"""EasySpec's Tables 1 and 2 on processes of this machine: target and draft model on 1, 2 and 4 of them.

    python -m benchmarks.easyspec_ranks --processes 1 2 4

Table 1 is the speed of plain decoding, tensor parallel over so many processes. Table 2 has seconds per 100 tokens for
drafting (d), verification (v) and in all, and the acceptance rate (α), of vanilla, TP, a chain (+sd), a tree (+tree)
and EasySpec, for every number of ranks that hold the draft model: they divide it for +sd and +tree, and each computes
some of a group's attention layers for EasySpec. The mean over prompts of tokens per second and its variance (Table 4)
stand beside them; the file has every row by task too. A CPU process is a device here, with one thread; where there are
more of them than cores they take turns, which the table says. Writes results/easyspec_ranks.json; sizes that it has of
the same models and options, and that are not measured now, stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.easyspec import SELF, draft_override
from benchmarks.places import RESULTS
from benchmarks.support.processes import led, start_others
from spec_sdk.bench.answers import Answer, Prompt, answer, events_of, spread_prompts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.metrics import request_metrics, summarise
from spec_sdk.pipeline import Pipeline
from spec_sdk.tables import number
from spec_sdk.usable_cores import usable_cores

PROGRAM = ("-m", "benchmarks.easyspec_ranks")


def rows_of(size: int, width: int, layers: int) -> list[tuple[str, int, list[str]]]:
    """Table 2's rows on ``size`` processes: label, ranks of the draft model (0: none), options."""
    tree = f"drafter.width={width}"
    methods = {
        "+sd": ["pipeline=sd_chain"],
        "+tree": ["pipeline=sd_chain", "verifier=multi_step", tree],
        "EasySpec": ["pipeline=easyspec_paper", tree, f"drafter.size={layers}"],
    }
    rows = [("vanilla" if size == 1 else "TP", 0, ["pipeline=vanilla"])]
    drafting = [ranks for ranks in (1, 2, 4, 8) if ranks <= size]
    for name, options in methods.items():
        rows += [(name, ranks, [*options, f"backend.groups.draft={[*range(ranks)]}"]) for ranks in drafting]
    return rows


def per_100_tokens(answers: Sequence[Answer]) -> dict[str, Any]:
    """Seconds of drafting (d), verification (v, recovery included) and in all per 100 tokens, α, and the mean and the
    variance over prompts of tokens per second.
    """
    summary = summarise(events_of(answers))
    scale = 100 / summary["new_tokens"]
    stages = summary["stage_s"]
    records = [request_metrics(each.events) for each in answers]
    speeds = [record["new_tokens"] / record["decode_s"] for record in records]
    return {
        "d": scale * stages["draft"],
        "v": scale * (stages["verify"] + stages["recover"]),
        "total": scale * summary["decode_s"],
        "alpha": summary["acceptance_rate"],
        "mean_accepted_tokens": summary["mean_accepted_tokens"],
        "tokens_per_second": statistics.fmean(speeds),
        "variance": statistics.pvariance(speeds),
    }


def by_task(answers: Sequence[Answer]) -> dict[str, Any]:
    """The row of all prompts, and under ``tasks`` those of each task."""
    tasks = sorted({each.prompt.task for each in answers})
    rows = {task: per_100_tokens([each for each in answers if each.prompt.task == task]) for task in tasks}
    return {**per_100_tokens(answers), "tasks": rows}


def measured(pipeline: Pipeline, prompts: Sequence[Prompt], new_tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """A row, and the tokens; on the other ranks nothing of both."""

    def work() -> tuple[dict[str, Any], list[list[int]]]:
        answer(pipeline, prompts[:1], 2)
        answers = answer(pipeline, prompts, new_tokens)
        return by_task(answers), [each.tokens for each in answers]

    return led(pipeline, work) or ({}, [])


def measure(arguments: argparse.Namespace, size: int) -> dict[str, Any]:
    """Both tables on ``size`` processes, of which this is one; what the leader returns counts.

    A draft model of its own is also measured alone, as a target.
    """
    prompts = spread_prompts(arguments.prompts, arguments.count, arguments.longest)
    where = ["backend=accelerate", "backend.device=cpu", f"backend.threads={arguments.threads}"]
    common = [draft_override(arguments.draft, arguments.overrides), *arguments.overrides, *where]
    found: dict[str, Any] = {"rows": []}
    plain: list[list[int]] = []
    for label, ranks, options in rows_of(size, arguments.width, arguments.size):
        pipeline = build(*options, f"sampling.temperature={arguments.temperature}", *common)
        row, tokens = measured(pipeline, prompts, arguments.new_tokens)
        plain = plain or tokens
        # greedy tokens of every row are plain decoding's
        same = tokens == plain if arguments.temperature == 0 else None
        found["rows"].append({"method": label, "draft_ranks": ranks, **row, "same_tokens": same})
        if pipeline.ranks.is_leader:
            print(f"{size} processes: {label}, draft on {ranks}: {row['total']:.2f} s", file=sys.stderr, flush=True)
        found |= {"facts": pipeline_facts(pipeline), "draft": pipeline.draft_name}
    if arguments.draft not in (SELF, "cut"):
        others = [override for override in arguments.overrides if not override.startswith("model.target=")]
        pipeline = build("pipeline=vanilla", f"model.target={arguments.draft}", *others, *where)
        found["draft_alone"] = measured(pipeline, prompts, arguments.new_tokens)[0]
    pipeline.ranks.close()
    return found


def show(report: dict[str, Any], cores: int) -> None:
    """Both tables, of all sizes that the report has."""
    sizes = sorted(report["sizes"], key=int)
    print("\nTable 1: tokens/s of plain decoding, tensor parallel")
    for size in sizes:
        found = report["sizes"][size]
        draft = found.get("draft_alone")
        alone = f", the draft model alone {100 / draft['total']:.1f}" if draft else ""
        print(f"  {size:>2} processes: {100 / found['rows'][0]['total']:.1f}{alone}")
    vanilla = report["sizes"][sizes[0]]["rows"][0]["total"] if sizes[0] == "1" else None
    print("\nTable 2: seconds per 100 tokens")
    heads = (
        ("target on", 10),
        ("draft on", 10),
        ("d", 8),
        ("v", 8),
        ("total", 8),
        ("ratio", 8),
        ("alpha", 8),
        ("tokens/s", 10),
        ("variance", 10),
    )
    print(f"{'method':10}" + "".join(f"{head:>{width}}" for head, width in heads) + "  same tokens")
    for size in sizes:
        for row in report["sizes"][size]["rows"]:
            columns = [size, str(row["draft_ranks"] or "-")]
            columns += [f"{row[key]:.2f}" if row["draft_ranks"] else "-" for key in ("d", "v")]
            columns += [
                f"{row['total']:.2f}",
                f"{vanilla / row['total']:.2f}x" if vanilla else "-",
                number(row["alpha"]),
                *(number(row.get(key), 1) for key in ("tokens_per_second", "variance")),
            ]
            line = "".join(f"{column:>{width}}" for column, (_, width) in zip(columns, heads, strict=True))
            print(f"{row['method']:10}{line}  { {True: 'yes', False: 'no', None: '-'}[row['same_tokens']] }")
        if int(size) * report["threads"] > cores:
            print(f"({size} processes of {report['threads']} threads take turns on {cores} cores: no {size} devices)")


def main() -> int:
    parser = script_parser(__doc__, count=2, new_tokens=32, output=RESULTS / "easyspec_ranks.json", overrides=None)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--draft", default="cut", help="self, cut, or a model reference")
    parser.add_argument("--longest", type=int, default=1000, help="characters of the longest prompt taken")
    parser.add_argument("--width", type=int, default=4, help="paths per level of the tree")
    parser.add_argument("--size", type=int, default=4, help="layers per group")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--as-size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_intermixed_args()
    if arguments.as_size:
        leads = "RANK" not in os.environ
        others = start_others(arguments.as_size, PROGRAM) if leads else []
        found = measure(arguments, arguments.as_size)
        if leads:
            print(json.dumps(found))
        return max((other.wait() for other in others), default=0)
    options = ("draft", "count", "new_tokens", "width", "size", "temperature", "threads", "overrides")
    report: dict[str, Any] = {name: getattr(arguments, name) for name in options}
    kept = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    alike = all(kept.get(name) == value for name, value in report.items())
    report["sizes"] = kept["sizes"] if alike else {}
    for size in arguments.processes:
        command = [sys.executable, *PROGRAM, *sys.argv[1:], "--as-size", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report["sizes"][str(size)] = json.loads(done.stdout.splitlines()[-1])
    show(report, len(usable_cores()))
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
