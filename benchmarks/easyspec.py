"""EasySpec's tables on this machine and these models.

    python -m benchmarks.easyspec table2      # vanilla, +sd, +tree, EasySpec: d, v, total per 100 tokens, α, by task
    python -m benchmarks.easyspec table3      # +tree and EasySpec alone, and their difference
    python -m benchmarks.easyspec table4      # EAGLE and EasySpec: tokens/s, variance over prompts, α, by task
    python -m benchmarks.easyspec table5      # cosine similarities inside the draft model
    python -m benchmarks.easyspec ablation    # Fig. 4: tree width x layers per group x calibration, as a multirun

Tables 2 to 4 are runs of task=bench, so any file of prompts serves whose lines name a task, and greedy answers are held
against plain decoding's. ``--draft self`` (the default) drafts with the target itself, so that whatever is not accepted
at temperature 0 is the fuzziness's doing; ``--draft cut`` drafts with its cut, and anything else is a model reference,
or auto. On several processes: benchmarks/easyspec_ranks.py.
Every table is written as JSON, with the machine's name, to benchmarks/results/easyspec-<table>.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.places import RESULTS
from benchmarks.support import plots
from benchmarks.support.bench_run import run_bench
from benchmarks.support.layer_similarity import STATES, similarities
from benchmarks.support.live_table import LiveTable
from benchmarks.support.task_rows import TaskRow, task_rows
from spec_sdk.bench.answers import Prompt, answer, events_of, spread_prompts
from spec_sdk.bench.chosen import own_overrides
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.records import VANILLA
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import PROMPTS, build, pipeline_facts, run_script, script_parser
from spec_sdk.metrics import summarise
from spec_sdk.model.layer_groups import easyspec_groups
from spec_sdk.pipeline import Pipeline
from spec_sdk.prompts import SPEC_BENCH_SAMPLE, encode
from spec_sdk.tables import number

SELF, CUT = "self", "cut"
TEMPERATURES = (0.0, 0.8)
"""Table 2's."""
WIDTHS, SIZES = (1, 4, 8, 12), (1, 2, 3, 4, 5)
"""Fig. 4's."""


def draft_override(draft: str, overrides: Sequence[str]) -> str:
    """``model.draft=…`` for ``--draft``; the target itself is found among the overrides, or is the default one."""
    if draft != SELF:
        return f"model.draft={draft}"
    targets = [override.partition("=")[2] for override in overrides if override.startswith("model.target=")]
    return f"model.draft={targets[-1] if targets else 'HuggingFaceTB/SmolLM2-135M-Instruct'}"


def header(pipeline: Pipeline, arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What the reports of table 5 and of the ablation begin with."""
    return {
        "table": arguments.table,
        **pipeline_facts(pipeline),
        "draft": pipeline.draft_name,
        "overrides": arguments.overrides,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
    }


def methods_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The paper's name of a method → the pipeline and its options; of table 4, ``--pipelines`` by their own names.

    The paper's trees are fixed. Those of table 4 may have policies of their own, which draft by what they would gain:
    all get the same, unless the overrides name one.
    """
    if arguments.table == "table4":
        named = any(override.startswith("policy=") for override in arguments.common)
        return {name: name if named else f"{name} policy=fixed" for name in arguments.pipelines.split(",")}
    tree = f"drafter.width={arguments.width}"
    methods = {
        "+sd": "sd_chain",
        "+tree": f"sd_chain verifier=multi_step {tree}",
        "EasySpec": f"easyspec_paper {tree} drafter.size={arguments.size}",
    }
    return {name: methods[name] for name in ("+tree", "EasySpec")} if arguments.table == "table3" else methods


def task_tables(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tables 2, 3 and 4: ``task=bench`` of their methods, all in turn on each prompt, and their columns by task."""
    # what chooses plugins belongs to each of those that are compared
    own = own_overrides(arguments.common)
    shared = [override for override in arguments.common if override not in own]
    methods = {name: " ".join([text, *map(shlex.quote, own)]) for name, text in methods_of(arguments).items()}
    temperatures = TEMPERATURES if arguments.table == "table2" else TEMPERATURES[:1]
    prompt_file = SPEC_BENCH_SAMPLE if arguments.prompts == PROMPTS else arguments.prompts
    options = [f"prompt_file={prompt_file}", f"prompt_limit={arguments.count}"]
    options += [f"max_new_tokens={arguments.new_tokens}", *shared]
    run = run_bench(list(methods.values()), temperatures, options, arguments.directory)
    labels = {pipeline: name for name, pipeline in methods.items()}
    rows = [dataclasses.replace(row, candidate=labels.get(row.candidate, row.candidate)) for row in task_rows(run)]
    print("\nseconds per 100 tokens (d drafting, v verifying); tokens/s: mean over prompts (variance)")
    widths = {"task": -16, "T": 4, "": -16} | dict.fromkeys(("d", "v", "total", "ratio", "alpha", "MAT"), 6)
    table = LiveTable(widths | {"tokens/s": 15})
    for row in rows:
        table.row(*_cells(row))
        if arguments.table == "table3" and row.candidate == "EasySpec":
            table.row(*_difference(row, next(r for r in rows if (r.candidate, r.task) == ("+tree", row.task))))
    head = run.head.data
    facts = {key: head[key] for key in ("machine", "target", "dtype", "weights", "prompts", "new_tokens")}
    return {
        "schema_version": 2,
        "table": arguments.table,
        **facts,
        "overrides": arguments.common,
        "drafts": {labels.get(c.name, c.name): c.draft for c in run.candidates.values()},
        "methods": methods,
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _cells(row: TaskRow) -> list[str]:
    drafts = row.candidate != VANILLA
    seconds = [f"{row.draft_s:.2f}" if drafts else "–", f"{row.verify_s:.2f}" if drafts else "–", f"{row.total_s:.2f}"]
    speed = f"{row.tokens_per_second:.1f} ({row.variance:.1f})"
    figures = [f"{row.speedup:.2f}x", number(row.alpha), number(row.mean_accepted_tokens), speed]
    return [row.task, f"{row.temperature:g}", row.candidate, *seconds, *figures]


def _difference(ours: TaskRow, tree: TaskRow) -> list[str]:
    """Table 3's last line of a dataset: EasySpec less +tree."""
    pairs = [(ours.draft_s, tree.draft_s), (ours.verify_s, tree.verify_s), (ours.total_s, tree.total_s)]
    alphas = [] if ours.alpha is None or tree.alpha is None else [(ours.alpha, tree.alpha)]
    seconds = [f"{mine - other:+.2f}" for mine, other in pairs]
    alpha = f"{alphas[0][0] - alphas[0][1]:+.2f}" if alphas else "–"
    return [ours.task, f"{ours.temperature:g}", "difference", *seconds, "", alpha, "", ""]


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
    # a job's name has only what differs between jobs
    only = {"drafter.width": arguments.widths[0], "drafter.size": arguments.sizes[0]}
    report["jobs"] = [ablation_entry(job, only, baseline["tokens_per_second"]) for job in jobs]
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


def ablation_entry(job: dict[str, Any], only: dict[str, int], vanilla_tokens_per_second: float) -> dict[str, Any]:
    """One point of the figure, from one job of the sweep's summary; ``only``: options that its name may lack. Raises
    RuntimeError if the job failed.
    """
    if job["status"] != 0:
        raise RuntimeError(f"job {job['job']} ended with status {job['status']}: {job['error']}")
    options = only | dict(part.split("=") for part in job["job"].split(","))
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


BY_TASK = ("table2", "table3", "table4")
OTHERS = {"table5": table5, "ablation": ablation}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = script_parser(__doc__, count=6, new_tokens=48, overrides=None)
    parser.add_argument("table", choices=[*BY_TASK, *OTHERS])
    parser.add_argument("--draft", default=SELF, help="self, cut, or a model reference")
    parser.add_argument("--longest", type=int, default=2000, help="table5, ablation: characters of the longest prompt")
    parser.add_argument("--width", type=int, default=4, help="tables 2 and 3: paths per level of the tree")
    parser.add_argument("--size", type=int, default=4, help="tables 2 and 3: layers per group")
    parser.add_argument("--widths", type=numbers, default=WIDTHS, help="ablation")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="ablation")
    parser.add_argument("--pipelines", default="eagle_tree,easyspec_paper", help="table4")
    parser.add_argument("--directory", type=Path, help="tables 2 to 4: where records stay, and a cut-off run goes on")
    add_output(parser)
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.dtype=bfloat16")
    arguments = parser.parse_intermixed_args()
    arguments.output = arguments.output or RESULTS / f"easyspec-{arguments.table}.json"
    arguments.common = [draft_override(arguments.draft, arguments.overrides), *arguments.overrides]
    if arguments.table in BY_TASK:
        report = task_tables(arguments)
    else:
        prompts = spread_prompts(arguments.prompts, arguments.count, arguments.longest)
        report = OTHERS[arguments.table](arguments, prompts)
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
