"""What pipelines gain on this device where so much of a draft is accepted, on models of random weights.

    python -m benchmarks.gpu.speedups --output speedups.json
    python -m benchmarks.gpu.speedups --device cpu --target tiny --draft tiny --tokens 24     # tries it out

Models of random weights agree on nothing. So coins decide in the place of the target's choices: of a node's children
each in turn is accepted with the probability ``--rates``, and the text means nothing. All else is as
:class:`spec_sdk.Engine` does it, from the draft's passes to the text that is handed out. Drafts are a draft model's, or
an EAGLE-3 head's over 32,000 tokens. Figures are over plain decoding's in the same process.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.random_head import read_by_head, write_random_head
from benchmarks.gpu.random_model import fitting
from spec_sdk import Engine, InMemoryModel
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.random_models import SHAPES, RandomTensors, hf_fields
from spec_sdk.contracts import Verdict, Verifier
from spec_sdk.model.architectures import read_config
from spec_sdk.ops.rows import Decision
from spec_sdk.testing.small_models import words
from spec_sdk.tree import TokenTree

SCHEMA_VERSION = 1
PIPELINES: dict[str, tuple[str, ...]] = {
    "sd_chain": ("sd_chain", "policy=fixed", "policy.depth=5"),
    "eagle_chain": ("eagle_tree", "policy=fixed", "policy.depth=5", "drafter.growth=beam", "drafter.width=1"),
    "eagle_tree": ("eagle_tree", "policy=fixed", "policy.depth=5", "drafter.growth=beam", "drafter.width=4"),
}
"""Of a fixed depth: policies and growths that price a level by its logits would price random ones."""
PROMPT, CONTEXT = 256, 1024
"""Tokens."""


def by_coins(rate: float, seed: int) -> Callable[[Verifier, TokenTree, Decision], Verdict]:
    """In the place of :meth:`Verifier.decided`: of a node's children the first whose coin says so is accepted."""
    coins = random.Random(seed)

    def decided(verifier: Verifier, tree: TokenTree, decision: Decision) -> Verdict:
        path = [0]
        while (child := next((d.node for d in tree.draws_N[path[-1]] if coins.random() < rate), None)) is not None:
            path.append(child)
        return Verdict(path, decision[1], tree)

    return decided


def model_of(shape: str, device: torch.device, dtype: torch.dtype) -> InMemoryModel:
    """A model of random weights with a tokenizer of a word for each token."""
    fields = hf_fields(shape)
    weights = RandomTensors(read_config(fields, f"shape {shape}"), device, dtype)
    tensors = {name: weights.tensor(name) for name in weights.names()}
    return InMemoryModel(tensors, fields, words(fields["vocab_size"]), f"random {shape}")


def timed(engine: Engine, tokens: int, rounds: int, rate: float | None = None, seed: int = 0) -> dict[str, float]:
    """Milliseconds of a token behind the first cycle's, and of a cycle, in the fastest of so many answers, since others
    on the machine may slow some down; tokens of a cycle. After an answer in which passes are captured. ``rate``: of
    drafted tokens that coins accept, the same ones in every answer.
    """
    prompt = " ".join(f"w{token}" for token in range(1, PROMPT))
    of_token, of_cycle, lengths = [], [], []
    for turn in range(rounds + 1):
        counts, began = list[int](), 0.0
        decided = Verifier.decided if rate is None else by_coins(rate, seed)
        with mock.patch.object(Verifier, "decided", decided):
            for part in engine.stream(prompt, max_new_tokens=tokens, ignore_eos=True):
                if not counts:
                    began = time.perf_counter()
                counts.append(len(part.tokens))
        seconds = time.perf_counter() - began
        if turn:
            of_token.append(seconds / sum(counts[1:]))
            of_cycle.append(seconds / (len(counts) - 1))
            lengths.append(sum(counts) / len(counts))
    return {
        "token_ms": 1e3 * min(of_token),
        "cycle_ms": 1e3 * min(of_cycle),
        "tokens_per_cycle": statistics.mean(lengths),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spec-sdk-") as directory:
        return measured(options, Path(directory))


def measured(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """``directory``: where the head is written."""
    began, device = time.monotonic(), torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = fitting(options.target, device)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "speedups",
        **device_facts(device),
        "target": SHAPES[shape][0],
        "draft": SHAPES[options.draft][0],
        "made_of": {name: list(own) for name, own in PIPELINES.items()},
        "dtype": str(dtype).removeprefix("torch."),
        "prompt": PROMPT,
        "pipelines": {},
        "left_out": [],
    }

    def keep() -> None:
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    torch.manual_seed(0)
    target, draft = (model_of(name, device, dtype) for name in (shape, options.draft))
    write_random_head(directory, shape, device, dtype)
    shared = [f"backend={device.type}", f"model.dtype={report['dtype']}", "sampler=exact", f"model.context={CONTEXT}"]
    plain = Engine.from_pipeline("vanilla", target=target, overrides=shared, max_num_seqs=1)
    report["plain"] = timed(plain, options.tokens, options.rounds)
    print(f"plain decoding: {report['plain']['token_ms']:.3f} ms a token", flush=True)
    for name, (pipeline, *own) in PIPELINES.items():
        for rate in options.rates:
            if time.monotonic() - began > options.seconds:
                report["left_out"].append(f"{name} at {rate:g}")
                continue
            head = [f"drafter.checkpoint={directory}", f"drafter.target_layers={read_by_head(shape)}"]
            own_head = head if name.startswith("eagle") else []
            engine = plain.with_pipeline(pipeline, draft=draft, overrides=[*own, *own_head, "sampler=exact"])
            found = timed(engine, options.tokens, options.rounds, rate, options.seed)
            found["over_plain"] = report["plain"]["token_ms"] / found["token_ms"]
            report["pipelines"].setdefault(name, {})[f"{rate:g}"] = found
            print(
                f"{name}, {rate:.0%} of drafted tokens accepted: {found['over_plain']:.2f} of plain decoding's speed; "
                f"{found['tokens_per_cycle']:.2f} tokens in a cycle of {found['cycle_ms']:.3f} ms",
                flush=True,
            )
            keep()
    keep()
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--target", choices=tuple(SHAPES), default="8b", help="8b: 1b where that does not fit")
    parser.add_argument("--draft", choices=tuple(SHAPES), default="1b", help="of the draft model")
    parser.add_argument("--rates", type=float, nargs="+", default=(0.6, 0.8, 0.9), help="of drafted tokens")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer")
    parser.add_argument("--rounds", type=int, default=4, help="answers that are timed of each")
    parser.add_argument("--seed", type=int, default=0, help="of the coins")
    parser.add_argument("--seconds", type=float, default=120.0, help="begin nothing further after this")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    measure(parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
