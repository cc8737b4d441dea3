"""How good is ``task=advise``? What it predicts beside what is measured, over models, tasks and drafters.

    python -m benchmarks.advise --models /tmp/models --state /tmp/state          # again and again, until all are done

Each call makes one setting that is missing in ``--state``: a model, a task's prompts, and all candidates of them
measured in turn (``task.checked`` is all of them). The models are the default one and cuts of its layers, which are
written to ``--models`` by the first call. ``--report`` writes results/advise.json from what is there: for every setting
the speed-up of each candidate, predicted and measured, and how far the one predicted to be best is from the best
measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.places import RESULTS
from spec_sdk.app import main as run
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import PROMPTS
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.safetensors_writer import save_tensors

DEFAULT = "HuggingFaceTB/SmolLM2-135M-Instruct"
CUTS: Mapping[str, Sequence[int]] = {
    "10 layers": (0, 1, 2, 3, 4, 14, 26, 27, 28, 29),
    "20 layers": (*range(8), 9, 11, 13, 15, 17, 19, 21, 23, 26, 27, 28, 29),
}
"""Layers of the default model that make smaller targets."""
TRAINED = ("prompt_lookup", "suffix", "mixed", "sd_chain drafter.width=4", "layer_skip_tree")
UNTRAINED = ("prompt_lookup", "suffix", "mixed", "token_recycling", "layer_skip_tree")
COPYING = ("prompt_lookup", "suffix", "mixed", "easyspec_tree")
TASKS = ("mt_bench", "summarization", "translation", "math_reasoning")
DENSE_TASKS = ("translation", "math_reasoning", "summarization", "qa", "mt_bench")


@dataclass(frozen=True)
class Setting:
    """``weights``: of ``model.weights``. Dense ones make a plain step dear and a wider pass cheap: gains are large."""

    model: str
    task: str
    weights: str = "auto"

    @property
    def name(self) -> str:
        suffix = "" if self.weights == "auto" else f"-{self.weights}"
        return f"{Path(self.model).name.replace(' ', '-')}{suffix}-{self.task}"

    @property
    def candidates(self) -> Sequence[str]:
        if self.weights == "dense":
            return COPYING
        return TRAINED if self.model == DEFAULT else UNTRAINED


SETTINGS = [
    *(Setting(model, task) for task in TASKS for model in (DEFAULT, *CUTS)),
    *(Setting(DEFAULT, task, "dense") for task in DENSE_TASKS),
]
LARGE_GAIN = 1.2
"""Speed-ups measured from here on are reported apart too."""
PLAIN_STEP = 1.0
"""The speed-up of plain decoding, which may be what is advised."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=Path, required=True, help="a directory: one result for every setting")
    parser.add_argument("--models", type=Path, required=True, help="a directory for the cut models")
    parser.add_argument("--seconds", type=float, default=26.0, help="task.seconds of every setting")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prepare", action="store_true", help="write the cut models, and measure nothing")
    parser.add_argument("--report", action="store_true", help="write the report of what is there")
    arguments = parser.parse_args()
    for name, layers in CUTS.items():
        write_cut(place_of(arguments.models, name), layers)
    if arguments.report:
        write_report(RESULTS / "advise.json", report(arguments.state))
    elif not arguments.prepare:
        missing = [setting for setting in SETTINGS if not result_of(arguments.state, setting).is_file()]
        if not missing:
            print("all settings are done: --report")
            return 3
        return measure(missing[0], arguments)
    return 0


def place_of(models: Path, name: str) -> Path:
    return models / name.replace(" ", "-")


def result_of(state: Path, setting: Setting) -> Path:
    return state / setting.name / "advise.json"


def write_cut(directory: Path, layers: Sequence[int]) -> None:
    """A checkpoint of some of the default model's layers, unless it is there."""
    if (directory / "model.safetensors").is_file():
        return
    source = open_checkpoint(DEFAULT)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name in sorted(source.names()):
        before, layer, after = name.partition("layers.")
        number, _, rest = after.partition(".")
        if not layer:
            tensors[name] = source.tensor(name)
        elif int(number) in layers:
            tensors[f"{before}{layer}{layers.index(int(number))}.{rest}"] = source.tensor(name)
    for file in source.directory.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        if file.name == "config.json":
            text = json.dumps({**json.loads(text), "num_hidden_layers": len(layers)})
        if "index" not in file.name:
            (directory / file.name).write_text(text, encoding="utf-8")
    for file in source.directory.glob("*.jinja"):
        (directory / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    save_tensors(directory / "model.safetensors", tensors, {"format": "pt"})


def measure(setting: Setting, arguments: argparse.Namespace) -> int:
    """One setting, through the command line."""
    directory = result_of(arguments.state, setting).parent
    model, candidates = setting.model, setting.candidates
    directory.mkdir(parents=True, exist_ok=True)
    prompts = directory / "prompts.jsonl"
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    prompts.write_text("\n".join(line for line in lines if json.loads(line)["task"] == setting.task), encoding="utf-8")
    return run(
        [
            "task=advise",
            f"task.candidates=[{','.join(repr(name) for name in candidates)}]",
            f"task.checked={len(candidates)}",
            f"task.seconds={arguments.seconds}",
            f"model.target={model if model == DEFAULT else place_of(arguments.models, model)}",
            f"model.dtype={arguments.dtype}",
            f"model.weights={setting.weights}",
            f"prompt_file={prompts}",
            f"max_new_tokens={arguments.new_tokens}",
            "ignore_eos=true",
            f"output_dir={directory}",
        ]
    )


def report(state: Path) -> dict[str, Any]:
    """All settings that are done, and what they come to together."""
    done = [setting for setting in SETTINGS if result_of(state, setting).is_file()]
    settings = [setting_of(setting, json.loads(result_of(state, setting).read_text())) for setting in done]
    errors = [abs(row["error"]) for setting in settings for row in setting["candidates"]]
    large = [abs(row["error"]) for s in settings for row in s["candidates"] if row["measured"] >= LARGE_GAIN]
    firsts = [abs(setting["error_of_predicted_best"]) for setting in settings]
    within = [setting["predicted_best_speedup"] >= 0.95 * setting["best_speedup"] for setting in settings]
    advised = [setting["advised_of_two_speedup"] >= 0.95 * setting["best_speedup"] for setting in settings]
    import torch

    summary = {
        "settings": len(settings),
        "pairs": len(errors),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "pairs_of_large_gain": len(large),
        "median_error_of_large_gain": statistics.median(large) if large else None,
        "worst_error_of_large_gain": max(large, default=None),
        "median_error_of_predicted_best": statistics.median(firsts),
        "predicted_best_within_5_percent": sum(within) / len(within),
        "advised_of_two_within_5_percent": sum(advised) / len(advised),
    }
    print(summary)
    return {**device_facts(torch.device("cpu")), "summary": summary, "results": settings}


def setting_of(setting: Setting, found: Mapping[str, Any]) -> dict[str, Any]:
    """One setting. ``advised_of_two_speedup``: of the one that is advised after measuring the two predicted to be best,
    as ``task.checked`` has it by default. Plain decoding is among those to choose from.
    """
    predicted = {row["candidate"]: row for row in found["candidates"]}
    rows = [
        {
            "candidate": row["name"],
            "tree": predicted[row["name"]]["tree"],
            "predicted": row["predicted"],
            "measured": row["speedup"],
            "error": row["error"],
            "limit": predicted[row["name"]]["limits"][0]["kind"],
        }
        for row in found["verification"]
    ]
    by_prediction = sorted(rows, key=lambda row: -row["predicted"])
    first = by_prediction[0]
    chosen = first["measured"] if first["predicted"] > PLAIN_STEP else PLAIN_STEP
    return {
        "model": setting.model,
        "weights": setting.weights,
        "task": setting.task,
        "prompts": found["verification"][0]["prompts"],
        "new_tokens": found["new_tokens"],
        "plain_tokens_per_second": found["plain"]["tokens_per_second"],
        "candidates": rows,
        "error_of_predicted_best": first["error"],
        "predicted_best": first["candidate"] if first["predicted"] > PLAIN_STEP else "vanilla",
        "predicted_best_speedup": chosen,
        "advised_of_two_speedup": max(PLAIN_STEP, *(row["measured"] for row in by_prediction[:2])),
        "best_speedup": max(PLAIN_STEP, *(row["measured"] for row in rows)),
    }


if __name__ == "__main__":
    sys.exit(main())
