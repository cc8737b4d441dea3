"""What the sigmoid sampler does to acceptance and to the text, over its scales α = −s, β = s.

    python -m benchmarks.sigmoid_quality
    python -m benchmarks.sigmoid_quality --count 2 --new-tokens 8 --scales 10 1e4     # a smoke run

Summaries of Spec-Bench's articles by SmolLM2-135M, drafted by its own layers (``model.draft=cut``), a chain per step.
Every setting answers the same prompts with the same seed. ROUGE-1 (F, package rouge-score) is taken between the outputs
of ``sampler=exact`` and of the setting; ``exact`` with another seed says what two answers without loss have in common,
and ``reference`` with the same seed that the fused sampler changes nothing. Writes ``results/sigmoid_quality.json``.

Needs ``pip install 'spec-sdk[benchmarks]'``.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rouge_score.rouge_scorer import RougeScorer

from benchmarks.places import RESULTS
from spec_sdk.bench.answers import Answer, Prompt, answer, events_of
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, run_script, script_parser
from spec_sdk.metrics import summarise
from spec_sdk.model.session import common_prefix

SCALES = (1e1, 1e2, 1e3, 1e4, 1e5)


def articles(path: Path, count: int, longest: int) -> list[Prompt]:
    """The first ``count`` prompts that ask for a summary, of at most ``longest`` characters."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = [line["turns"][0] for line in lines if line.get("task") == "summarization"]
    return [Prompt(text, "summarization") for text in texts if len(text) <= longest][:count]


def main() -> int:
    parser = script_parser(__doc__, count=5, new_tokens=48, output=RESULTS / "sigmoid_quality.json")
    parser.add_argument("--longest", type=int, default=1500, help="characters of a prompt")
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--scales", type=float, nargs="+", default=SCALES)
    arguments = parser.parse_intermixed_args()
    prompts = articles(arguments.prompts, arguments.count, arguments.longest)
    common = [
        "pipeline=sd_chain", "verifier=chain_rejection", f"policy.depth={arguments.gamma}", *arguments.overrides,
    ]  # fmt: skip
    hot = ["sampling.temperature=1.0", "sampling.seed=0"]
    settings = {
        "exact": [*hot, "sampler=exact"],
        "reference, same seed": [*hot, "sampler=reference"],
        "exact, another seed": ["sampling.temperature=1.0", "sampling.seed=7", "sampler=exact"],
    }
    for scale in arguments.scales:
        scales = [f"sampler.alpha={-scale}", f"sampler.beta={scale}"]
        settings[f"sigmoid ±{scale:.0e}"] = [*hot, "sampler=sigmoid", *scales]
    scorer = RougeScorer(["rouge1"])
    report: dict[str, Any] = {
        "schema_version": 1,
        "benchmark": "sigmoid_quality",
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "gamma": arguments.gamma,
        "overrides": arguments.overrides,
        "settings": {},
    }
    exact: list[Answer] = []
    print(f"{'sampler':24}{'accept':>8}{'MAT':>8}{'ROUGE-1':>9}{'same':>7}   (against exact; same: tokens in common)")
    for name, options in settings.items():
        pipeline = build(*common, *options)
        report["machine"] = pipeline.backend.describe()
        answers = answer(pipeline, prompts, arguments.new_tokens)
        exact = exact or answers
        texts = [[pipeline.tokenizer.decode(one.tokens) for one in many] for many in (exact, answers)]
        rouge = [scorer.score(a, b)["rouge1"].fmeasure for a, b in zip(*texts, strict=True)]
        same = [common_prefix(a.tokens, b.tokens) for a, b in zip(exact, answers, strict=True)]
        summary = summarise(events_of(answers))
        entry = {
            "acceptance_rate": summary["acceptance_rate"],
            "mean_accepted_tokens": summary["mean_accepted_tokens"],
            "rouge1_to_exact": statistics.mean(rouge),
            "tokens_before_first_difference": statistics.mean(same),
            "identical_answers": sum(a.tokens == b.tokens for a, b in zip(exact, answers, strict=True)),
            "first_answer": texts[1][0],
        }
        report["settings"][name] = entry
        figures = [entry[key] for key in list(entry)[:4]]
        print(f"{name:24}{figures[0]:>8.2f}{figures[1]:>8.2f}{figures[2]:>9.3f}{figures[3]:>7.1f}", flush=True)
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
