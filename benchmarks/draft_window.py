"""Of long prompts, how much should a draft model read? What windows gain and cost behind thousands of tokens.

    python -m benchmarks.draft_window --tokens 4000

Each prompt is a few texts of a file, one behind the other, and asks for a summary. Chains of two tokens are drafted
behind all of the prompt, and behind its last tokens alone (``drafter.window``), beside plain decoding in the same run.
Writes results/draft_window.json: ratios to plain decoding of whole answers, of the time to the first token and of that
per further token, medians over prompts (above 1: faster), and the acceptance rate of all drafted tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.places import RESULTS
from benchmarks.support.bench_run import run_bench
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.records import AnswerRecord
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script
from spec_sdk.prompts import read_prompt_texts

CHARACTERS = 4.3
"""Of a token of English text, about."""
ASKED = "\n\nSummarise all of this in one paragraph."
PIPELINE = "sd_chain policy=fixed policy.depth=2"


def joined_prompts(texts: Sequence[str], tokens: int, count: int) -> list[str]:
    """``count`` prompts of about so many tokens, each of other texts than the one before."""
    prompts, place, most = list[str](), 0, int(tokens * CHARACTERS)
    for _ in range(count):
        parts = list[str]()
        while sum(map(len, parts)) < most:
            parts.append(texts[place % len(texts)])
            place += 1
        prompts.append("\n\n".join(parts)[:most] + ASKED)
    return prompts


def compared(plain: Sequence[AnswerRecord], drafted: Sequence[AnswerRecord]) -> dict[str, float]:
    """Answers to the same prompts: medians of ratios, and the share of drafted tokens that was accepted."""

    def ratio(seconds: Callable[[AnswerRecord], float]) -> float:
        return round(statistics.median(seconds(a) / seconds(b) for a, b in zip(plain, drafted, strict=True)), 3)

    accepted, offered = (sum(getattr(answer, of) or 0 for answer in drafted) for of in ("accepted", "drafted"))
    return {
        "speedup": ratio(lambda answer: answer.seconds),
        "first_token": ratio(first_token),
        "further_tokens": ratio(lambda answer: (answer.seconds - first_token(answer)) / (answer.new_tokens - 1)),
        "acceptance_rate": round(accepted / offered, 3),
    }


def first_token(answer: AnswerRecord) -> float:
    """Seconds until it came."""
    assert answer.first_token_s is not None, "this tree tells it of every answer"
    return answer.first_token_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", default="spec_bench_sample", help="JSONL of prompts, or spec_bench_sample")
    parser.add_argument("--tokens", type=int, default=4000, help="of a prompt, about")
    parser.add_argument("--count", type=int, default=6, help="prompts")
    parser.add_argument("--windows", nargs="*", default=["null", "2048", "1024", "512", "256"])
    parser.add_argument("--new-tokens", type=int, default=128)
    add_output(parser, RESULTS / "draft_window.json")
    arguments = parser.parse_args()
    texts = read_prompt_texts(arguments.prompts, "--prompts")
    pipelines = {window: f"{PIPELINE} drafter.window={window}" for window in arguments.windows}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        prompts = joined_prompts(texts, arguments.tokens, arguments.count)
        file.write("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        file.flush()
        options = [f"prompt_file={file.name}", f"max_new_tokens={arguments.new_tokens}"]
        run = run_bench([*pipelines.values()], [0.0], options, None)
    answers = {name: [answer for answer in run.answers if answer.candidate == name] for name in run.candidates}
    report = {
        "device": device_facts(torch.device("cpu")),
        "prompt_tokens": [answer.prompt_tokens for answer in answers["vanilla"]],
        "new_tokens": arguments.new_tokens,
        "pipeline": PIPELINE,
        "by_window": {window: compared(answers["vanilla"], answers[name]) for window, name in pipelines.items()},
    }
    for window, found in report["by_window"].items():
        print(f"window {window:>5}: " + "  ".join(f"{key} {value:.2f}" for key, value in found.items()))
    write_report(Path(arguments.output), report)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_script(main))
