"""EasySpec's tables on this machine and these models.

    python -m benchmarks.easyspec table2      # vanilla, +sd, +tree, EasySpec: d, v, total per 100 tokens, α
    python -m benchmarks.easyspec table4      # tokens/s, variance over prompts, α per task and pipeline
    python -m benchmarks.easyspec table5      # cosine similarities inside the draft model
    python -m benchmarks.easyspec ablation    # Fig. 4: tree width x layers per group x calibration, as a multirun

``--draft self`` (the default) drafts with the target itself, so that whatever is not accepted at temperature 0 is the
fuzziness's doing; ``--draft cut`` drafts with its cut, as the pipelines do by default; anything else is a model
reference.
Every table is written as JSON, with the machine's name, to benchmarks/results/easyspec-<table>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.layer_similarity import STATES, similarities
from benchmarks.places import RESULTS
from spec_sdk.bench import plots
from spec_sdk.bench.answers import Answer, Prompt, answer, events_of, spread_prompts
from spec_sdk.bench.live_table import LiveTable
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.metrics import request_metrics, summarise
from spec_sdk.model.layer_groups import easyspec_groups
from spec_sdk.pipeline import Pipeline
from spec_sdk.prompts import encode
from spec_sdk.tables import number

SELF, CUT = "self", "cut"
WIDTHS, SIZES = (1, 4, 8, 12), (1, 2, 3, 4, 5)
"""Fig. 4's."""


def draft_override(draft: str, overrides: Sequence[str]) -> str:
    """``model.draft=…`` for ``--draft``; the target itself is found among the overrides, or is the default one."""
    if draft != SELF:
        return f"model.draft={draft}"
    targets = [override.partition("=")[2] for override in overrides if override.startswith("model.target=")]
    return f"model.draft={targets[-1] if targets else 'HuggingFaceTB/SmolLM2-135M-Instruct'}"


def header(pipeline: Pipeline, arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What every report begins with."""
    return {
        "table": arguments.table,
        **pipeline_facts(pipeline),
        "draft": pipeline.draft_name,
        "overrides": arguments.overrides,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
    }


def per_100_tokens(answers: Sequence[Answer]) -> dict[str, Any]:
    """Seconds of drafting (d), verification (v, recovery included) and in all per 100 tokens, and α."""
    summary = summarise(events_of(answers))
    scale = 100 / summary["new_tokens"]
    stages = summary["stage_s"]
    return {
        "d": scale * stages["draft"],
        "v": scale * (stages["verify"] + stages["recover"]),
        "total": scale * summary["decode_s"],
        "alpha": summary["acceptance_rate"],
        "mean_accepted_tokens": summary["mean_accepted_tokens"],
    }


def table2(arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Rows of Table 2 at temperatures 0 and 0.8. (TP needs several devices: benchmarks/ranks.py.)"""
    tree, size = f"drafter.width={arguments.width}", f"drafter.size={arguments.size}"
    rows = {
        "vanilla": ("pipeline=vanilla",),
        "+sd": ("pipeline=sd_chain",),
        "+tree": ("pipeline=sd_chain", "verifier=multi_step", tree),
        "EasySpec": ("pipeline=easyspec_paper", tree, size),
    }
    report: dict[str, Any] = {}
    for temperature in (0.0, 0.8):
        print(f"\ntemperature {temperature}; seconds per 100 tokens")
        table = LiveTable({"": -10} | dict.fromkeys(("d", "v", "total", "ratio", "alpha", "MAT"), 7))
        for name, overrides in rows.items():
            pipeline = build(*overrides, f"sampling.temperature={temperature}", *arguments.common)
            if not report:
                report = {**header(pipeline, arguments, prompts), "width": arguments.width, "size": arguments.size}
                report["rows"] = {}
            answer(pipeline, prompts[:1], 8)
            row = per_100_tokens(answer(pipeline, prompts, arguments.new_tokens))
            row["speedup"] = report["rows"].get(f"{temperature} vanilla", row)["total"] / row["total"]
            report["rows"][f"{temperature} {name}"] = row
            report["draft"] = report["draft"] or pipeline.draft_name
            plain = pipeline.draft_name is None
            seconds = ["–" if plain else f"{row['d']:.2f}", "–" if plain else f"{row['v']:.2f}", f"{row['total']:.2f}"]
            mat = f"{row['mean_accepted_tokens']:.2f}"
            table.row(name, *seconds, f"{row['speedup']:.2f}x", number(row["alpha"]), mat)
    return report


def table4(arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Tokens/s per prompt, mean and variance, and α, for every task and pipeline."""
    report: dict[str, Any] = {}
    for name in arguments.pipelines.split(","):
        pipeline = build(f"pipeline={name}", *arguments.common)
        report = report or {**header(pipeline, arguments, prompts), "pipelines": {}}
        answer(pipeline, prompts[:1], 8)
        answers = answer(pipeline, prompts, arguments.new_tokens)
        print(f"\n{name}, drafting with {pipeline.draft_name}")
        table = LiveTable({"task": -20, "tokens/s": 8, "variance": 8, "alpha": 6})
        tasks: dict[str, Any] = {}
        for task in sorted({prompt.task for prompt in prompts}):
            records = [request_metrics(a.events) for a in answers if a.prompt.task == task]
            speeds = [record["new_tokens"] / record["decode_s"] for record in records]
            drafted = sum(record["drafted"] for record in records)
            tasks[task] = {
                "prompts": len(records),
                "tokens_per_second": statistics.fmean(speeds),
                "variance": statistics.pvariance(speeds),
                "alpha": sum(record["accepted"] for record in records) / drafted if drafted else None,
            }
            mean, variance, alpha = (tasks[task][key] for key in ("tokens_per_second", "variance", "alpha"))
            table.row(task, f"{mean:.2f}", f"{variance:.2f}", number(alpha))
        report["pipelines"][name] = tasks
    return report


def table5(arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Cosine similarities for 2, 3, 4 and 5 layers per group, on the target's own answers."""
    vanilla = build("pipeline=vanilla", *arguments.common)
    draft = vanilla.models.draft()
    report = {**header(vanilla, arguments, prompts), "draft": draft.name, "sizes": {}}
    sequences = []
    for given in answer(vanilla, prompts, arguments.new_tokens):
        sequences.append([*encode(vanilla.tokenizer, given.prompt.text, chat=None), *given.tokens])
    table = LiveTable({"size": -4, "layers": -14} | dict.fromkeys(STATES, 9))
    for size in SIZES[1:]:
        groups = easyspec_groups(draft.executor.layers, size)
        found = similarities(draft.executor, groups, sequences, positions=4)
        report["sizes"][size] = found
        for name, values in found.items():
            table.row(str(size), name, *(f"{values[state]:.3f}" for state in STATES))
    return report


def ablation(arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Fig. 4 through ``--multirun``: tokens/s and α for every width, size and calibration, and a plot of them."""
    vanilla = build("pipeline=vanilla", *arguments.common)
    answer(vanilla, prompts[:1], 8)
    baseline = summarise(events_of(answer(vanilla, prompts, arguments.new_tokens)))
    draft = vanilla.models.draft().name
    report = {**header(vanilla, arguments, prompts), "draft": draft, "vanilla": baseline["tokens_per_second"]}
    del vanilla
    with tempfile.TemporaryDirectory(prefix="spec-sdk-ablation-") as directory:
        prompt_file = Path(directory) / "prompts.jsonl"
        prompt_file.write_text("".join(json.dumps({"prompt": prompt.text}) + "\n" for prompt in prompts))
        command = [sys.executable, "-m", "spec_sdk", "--multirun", "pipeline=easyspec_paper", *arguments.common]
        command += [f"drafter.width={','.join(map(str, arguments.widths))}"]
        command += [f"drafter.size={','.join(map(str, arguments.sizes))}", "drafter.calibrate=true,false"]
        command += [f"prompt_file={prompt_file}", f"max_new_tokens={arguments.new_tokens}"]
        command += [f"output_dir={directory}/sweep"]
        print(" ".join(command), flush=True)
        run_sweep(command)
        jobs = json.loads((Path(directory) / "sweep" / "summary.json").read_text())["jobs"]
    report["jobs"] = [ablation_entry(job, baseline["tokens_per_second"]) for job in jobs]
    table = LiveTable({"width": 5, "size": 5, "calibrated": 10, "ratio": 6, "alpha": 6, "MAT": 6})
    for entry in report["jobs"]:
        options = [str(entry[key]) for key in ("width", "size", "calibrate")]
        table.row(*options, *(f"{entry[key]:.2f}" for key in ("speedup", "alpha", "mean_accepted_tokens")))
    plot_ablation(report, arguments.output.with_suffix(".svg"))
    return report


def run_sweep(command: Sequence[str]) -> None:
    """Run it and show which job it is at. Raises CalledProcessError with its last lines if a job fails."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("job "):
                print(line, end="", flush=True)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, stderr="".join(lines[-20:]))


def ablation_entry(job: dict[str, Any], vanilla_tokens_per_second: float) -> dict[str, Any]:
    """One point of the figure, from one job of the sweep's summary. Raises RuntimeError if the job failed."""
    if job["status"] != 0:
        raise RuntimeError(f"job {job['job']} ended with status {job['status']}: {job['error']}")
    options = dict(part.split("=") for part in job["job"].split(","))
    summary = job["summary"]
    return {
        "width": int(options["drafter.width"]),
        "size": int(options["drafter.size"]),
        "calibrate": options["drafter.calibrate"].lower() == "true",
        "tokens_per_second": summary["tokens_per_second"],
        "speedup": summary["tokens_per_second"] / vanilla_tokens_per_second,
        "alpha": summary["acceptance_rate"],
        "mean_accepted_tokens": summary["mean_accepted_tokens"],
    }


def plot_ablation(report: dict[str, Any], path: Path) -> None:
    """Fig. 4: tokens/s over vanilla's and acceptance rate over layers per group; dashed without calibration."""
    if (figure := plots.new_figure(10, 4)) is None:
        return
    left, right = figure.subplots(1, 2)
    for place, width in enumerate(sorted({job["width"] for job in report["jobs"]})):
        for calibrate, style in ((True, "-o"), (False, "--x")):
            jobs = [job for job in report["jobs"] if (job["width"], job["calibrate"]) == (width, calibrate)]
            label = f"width {width}" + ("" if calibrate else ", not calibrated")
            sizes = [job["size"] for job in jobs]
            left.plot(sizes, [job["speedup"] for job in jobs], style, color=f"C{place}", label=label)
            right.plot(sizes, [job["alpha"] for job in jobs], style, color=f"C{place}", label=label)
    left.set_ylabel("tokens/s, as a ratio to plain decoding")
    right.set_ylabel("acceptance rate")
    for axis in (left, right):
        axis.set_xlabel("layers per group (N)")
        axis.set_ylim(bottom=0)
    right.legend(fontsize="small")
    figure.suptitle(f"{report['target']}, drafting with {report['draft']}; {report['machine']}", fontsize="small")
    plots.save(figure, path)


TABLES = {"table2": table2, "table4": table4, "table5": table5, "ablation": ablation}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = script_parser(__doc__, count=6, new_tokens=48, overrides=None)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--draft", default=SELF, help="self, cut, or a model reference")
    parser.add_argument("--longest", type=int, default=2000, help="characters of the longest prompt taken")
    parser.add_argument("--width", type=int, default=4, help="table2: paths per level of the tree")
    parser.add_argument("--size", type=int, default=4, help="table2: layers per group")
    parser.add_argument("--widths", type=numbers, default=WIDTHS, help="ablation")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="ablation")
    parser.add_argument("--pipelines", default="sd_chain,easyspec_paper", help="table4")
    parser.add_argument("--output", type=Path)
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_intermixed_args()
    arguments.output = arguments.output or RESULTS / f"easyspec-{arguments.table}.json"
    arguments.common = [draft_override(arguments.draft, arguments.overrides), *arguments.overrides]
    prompts = spread_prompts(arguments.prompts, arguments.count, arguments.longest)
    write_report(arguments.output, TABLES[arguments.table](arguments, prompts))
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
