"""Drafters beside one another and beside plain decoding: tokens per pass, acceptance by depth, drafting time, speed-up.

    python -m benchmarks.drafters --drafters prompt_lookup suffix mixed "mixed drafter.successors=0" --prompts 12

A drafter is a pipeline, and options after it. All share the target that plain decoding uses. Every prompt is answered
by all of them, one after the other, in another order each time; figures are medians over a task's prompts. Writes
results/drafters.json: per temperature, drafter and task.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import PROMPTS, RESULTS, Answer, answer, events_of, spread_prompts, write_report
from benchmarks.support import machine
from spec_sdk import Engine
from spec_sdk.metrics import summarise

VANILLA = "vanilla"
DRAFTERS = ("prompt_lookup policy=adaptive", "suffix", "token_recycling", "mixed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafters", nargs="+", default=DRAFTERS, metavar="PIPELINE", help="with options in quotes")
    parser.add_argument("--prompt-file", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--prompts", type=int, default=12, help="prompts taken, evenly spread over the file")
    parser.add_argument("--longest", type=int, default=None, help="characters of the longest prompt that is taken")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--output", type=Path, default=RESULTS / "drafters.json")
    parser.add_argument("--options", nargs="*", default=[], help="options of all, such as model.dtype=bfloat16")
    arguments = parser.parse_args()
    prompts = spread_prompts(arguments.prompt_file, arguments.prompts, arguments.longest)
    vanilla = Engine.from_pipeline(VANILLA, overrides=arguments.options, max_num_seqs=1)
    report: dict[str, Any] = {
        **machine.facts(vanilla.pipeline.models.target.executor.device),
        "target": vanilla.pipeline.target_name,
        "dtype": vanilla.pipeline.dtype,
        "options": arguments.options,
        "new_tokens": arguments.new_tokens,
        "temperatures": {},
    }
    for temperature in arguments.temperature:
        sampled = f"sampling.temperature={temperature}"
        engines = {VANILLA: vanilla.with_pipeline(VANILLA, overrides=[*arguments.options, sampled])}
        for drafter in arguments.drafters:
            name, *options = drafter.split()
            engines[drafter] = vanilla.with_pipeline(name, overrides=[*arguments.options, sampled, *options])
        answers = answers_of(engines, prompts, arguments.new_tokens)
        report["temperatures"][str(temperature)] = figures = {
            drafter: by_task(found, answers[VANILLA]) for drafter, found in answers.items()
        }
        show(temperature, figures)
    write_report(arguments.output, report)
    return 0


def answers_of(engines: dict[str, Engine], prompts: Sequence[Any], new_tokens: int) -> dict[str, list[Answer]]:
    """Drafter → the answers to ``prompts``; they take turns at every prompt."""
    names, answers = list(engines), {name: list[Answer]() for name in engines}
    for name in names:
        # what compiles or is measured before a run is not timed
        answer(engines[name].pipeline, prompts[:1], 16)
    for turn, prompt in enumerate(prompts):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            answers[name] += answer(engines[name].pipeline, [prompt], new_tokens)
    return answers


def by_task(answers: Sequence[Answer], plain: Sequence[Answer]) -> dict[str, Any]:
    """Task → the figures of a drafter's answers beside those of plain decoding; and of all tasks together."""
    tasks = dict.fromkeys(answer.prompt.task for answer in answers)
    pairs = list(zip(answers, plain, strict=True))
    groups = {task: [pair for pair in pairs if pair[0].prompt.task == task] for task in tasks}
    return {task: figures_of(group) for task, group in {**groups, "all": pairs}.items()}


def figures_of(pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    """Medians over prompts, and of all cycles together the acceptance by depth."""
    ours, theirs = ([summarise(answer.events) for answer in side] for side in zip(*pairs, strict=True))
    cycles = [event for event in events_of([own for own, _ in pairs]) if event["event"] == "cycle"]
    deepest = max((cycle["drafted"] for cycle in cycles), default=0)
    return {
        "prompts": len(pairs),
        "tokens_per_second": statistics.median(own["tokens_per_second"] for own in ours),
        "speedup": statistics.median(
            own["tokens_per_second"] / plain["tokens_per_second"] for own, plain in zip(ours, theirs, strict=True)
        ),
        "mean_accepted_tokens": statistics.median(own["mean_accepted_tokens"] for own in ours),
        "pooled_mean_accepted_tokens": sum(own["new_tokens"] for own in ours) / len(cycles),
        "acceptance_by_depth": [
            sum(cycle["accepted"] >= depth for cycle in cycles) / sum(cycle["drafted"] >= depth for cycle in cycles)
            for depth in range(1, deepest + 1)
        ],
        "nodes_per_cycle": statistics.fmean(cycle["tree_nodes"] for cycle in cycles),
        "draft_ms_per_cycle": 1e3 * statistics.fmean(cycle["draft_s"] + cycle["recover_s"] for cycle in cycles),
        "verify_ms_per_cycle": 1e3 * statistics.fmean(cycle["verify_s"] for cycle in cycles),
        "prompts_with_equal_tokens": sum(own.tokens == plain.tokens for own, plain in pairs),
    }


def show(temperature: float, figures: dict[str, Any]) -> None:
    print(f"\ntemperature {temperature}: mean accepted tokens (speed-up), by task")
    tasks = list(figures[VANILLA])
    print(f"{'':34}" + "".join(f"{task[:12]:>14}" for task in tasks) + "   nodes  draft ms  verify ms  equal")
    for drafter, of in figures.items():
        cells = "".join(
            f"{of[task]['pooled_mean_accepted_tokens']:>7.2f} ({of[task]['speedup']:.2f})" for task in tasks
        )
        every = of["all"]
        print(
            f"{drafter[:33]:34}{cells}{every['nodes_per_cycle']:8.1f}{every['draft_ms_per_cycle']:10.2f}"
            f"{every['verify_ms_per_cycle']:11.1f}  {every['prompts_with_equal_tokens']}/{every['prompts']}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
