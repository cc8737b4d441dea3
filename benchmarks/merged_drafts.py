"""One draft model, several, and several that were trained to complement each other: what their merged trees accept.

    python -m benchmarks.merged_drafts --first first --twin twin --complement boosted --options model.dtype=bfloat16

SpecInfer (Miao et al. 2024, arXiv:2305.09781) merges the guesses of several small draft models into one tree. Compared
at equal numbers of drafted tokens: the first model's chain, its own tree, and the trees merged with the chain of a twin
(trained alike) or of a complement (``task.complements``). Writes results/merged_drafts.json, as benchmarks.drafters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.drafters import VANILLA, answers_of, by_task, show
from benchmarks.measuring import PROMPTS, RESULTS, spread_prompts, write_report
from benchmarks.support import machine
from spec_sdk import Engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", required=True, help="directory of a draft model")
    parser.add_argument("--twin", required=True, help="of another one that was trained alike")
    parser.add_argument("--complement", nargs="+", required=True, help="of ones that were trained to complement it")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--prompt-file", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--prompts", type=int, default=12, help="prompts taken, evenly spread over the file")
    parser.add_argument("--longest", type=int, default=None, help="characters of the longest prompt that is taken")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--output", type=Path, default=RESULTS / "merged_drafts.json")
    parser.add_argument("--options", nargs="*", default=[], help="options of all, such as model.dtype=bfloat16")
    arguments = parser.parse_args()
    prompts = spread_prompts(arguments.prompt_file, arguments.prompts, arguments.longest)
    options = [*arguments.options, "policy=fixed", f"policy.depth={arguments.depth}"]
    vanilla = Engine.from_pipeline(VANILLA, overrides=options, max_num_seqs=1)
    models = vanilla.pipeline.models
    report: dict[str, Any] = {
        **machine.facts(models.target.executor.device),
        "target": vanilla.pipeline.target_name,
        "dtype": vanilla.pipeline.dtype,
        "options": options,
        "drafts": {"first": arguments.first, "twin": arguments.twin, "complements": arguments.complement},
        "new_tokens": arguments.new_tokens,
        "temperatures": {},
    }
    for temperature in arguments.temperature:
        sampled = f"sampling.temperature={temperature}"
        engines = {VANILLA: vanilla.with_pipeline(VANILLA, overrides=[*options, sampled])}
        for name, of in pipelines(arguments.first, arguments.twin, arguments.complement).items():
            engines[name] = vanilla.with_pipeline(of[0], overrides=[*options, sampled, *of[1:]])
        answers = answers_of(engines, prompts, arguments.new_tokens)
        figures = {name: by_task(found, answers[VANILLA]) for name, found in answers.items()}
        report["temperatures"][str(temperature)] = figures
        show(temperature, figures)
    write_report(arguments.output, report)
    return 0


def pipelines(first: str, twin: str, complements: list[str]) -> Mapping[str, list[str]]:
    """Name → pipeline and options. All but the single chains draft two tokens a level."""

    def merged(*drafts: str) -> list[str]:
        members = ",".join(f"{{name:draft_model,draft:'{draft}'}}" for draft in drafts)
        return ["specinfer_tree", f"drafter.members=[{members}]"]

    return {
        "first, chain": ["sd_chain", f"model.draft='{first}'"],
        "twin, chain": ["sd_chain", f"model.draft='{twin}'"],
        **{f"{Path(name).name}, chain": ["sd_chain", f"model.draft='{name}'"] for name in complements},
        "first, two paths": ["sd_chain", f"model.draft='{first}'", "drafter.width=2"],
        "first + twin": merged(first, twin),
        **{f"first + {Path(name).name}": merged(first, name) for name in complements},
    }


if __name__ == "__main__":
    sys.exit(main())
