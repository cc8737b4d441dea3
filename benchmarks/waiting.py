"""Threads that spin, sleep, or do what ``backend.wait=auto`` chooses, on an idle machine and on a shared one.

    python -m benchmarks.waiting

Plain decoding of the default model, one token after the other, and its linear layers alone over 1 and 8 rows: first on
the machine as it is, then with one core taken by another process. The choices take turns of some seconds, so that each
of them meets every state of the machine. Writes
results/waiting.json. Where the environment says how threads wait (OMP_WAIT_POLICY), that alone is measured.

Legend: I inputs, N rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.places import RESULTS
from spec_sdk.bench.answers import spread_prompts
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import PROMPTS, build, run_script
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.prompts import encode
from spec_sdk.tree import TokenTree
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.library import find
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.thread_waiting import CHOICES, ENVIRONMENT, ThreadWaiting

ROWS = (1, 8)
OTHER_PROCESS = "while True: pass"


class Rival:
    """The model with threads that wait in one way."""

    def __init__(self, choice: str, whole: TorchExecutor, tokens: list[int]) -> None:
        self.waiting = ThreadWaiting(choice)
        ops = CpuOps(waiting=self.waiting)
        self._ops: Ops = ops if isinstance(find(), str) else NativeOps(ops, self.waiting)
        self._session = Session(TorchExecutor(whole.decoder, self._ops))
        self._prefix = len(tokens) - 1
        self._session.prefill(0, tokens[:-1])
        self._token = tokens[-1]
        decoder = whole.decoder
        self._layers = [layer for b in decoder.blocks for layer in (b.qkv, b.output, *b.mlp.projections)]
        self._layers.append(decoder.output_head)
        self._x = {(N, x.inputs): torch.randn(N, x.inputs, dtype=decoder.dtype) for N in ROWS for x in self._layers}

    def decode(self) -> None:
        """One token."""
        logits_NV = self._session.score([0], [TokenTree.root_only(self._token)])[0].logits_NV
        self._token = int(logits_NV[0].argmax())
        self._session.commit([0], [[0]])
        if self._session.length(0) >= self._prefix + 64:
            self._session.truncate(0, self._prefix)

    @torch.no_grad()
    def linear(self, N: int) -> None:
        """All linear layers over N rows."""
        self._ops.before_pass()
        for layer in self._layers:
            layer(self._x[N, layer.inputs])

    @property
    def calls(self) -> dict[str, Callable[[], None]]:
        linear = {f"linear layers, {N} rows": lambda N=N: self.linear(N) for N in ROWS}
        return {"a token": self.decode, **linear}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--prefix", type=int, default=256, help="committed tokens before the first that is timed")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement in each turn")
    parser.add_argument("--turns", type=int, default=2)
    add_output(parser, RESULTS / "waiting.json")
    parser.add_argument("overrides", nargs="*", help="options of spec_sdk, such as model.target=…")
    arguments = parser.parse_intermixed_args()
    options = ("pipeline=vanilla", "backend=cpu", "backend.compile=false", "model.dtype=bfloat16")
    pipeline = build(*options, *arguments.overrides)
    executor = pipeline.models.target.executor
    assert isinstance(executor, TorchExecutor)
    text = "\n".join(prompt.text for prompt in spread_prompts(arguments.prompts, 20))
    tokens = encode(pipeline.tokenizer, text, chat=None)[: arguments.prefix + 1]
    said = [f"{name}={os.environ[name]}" for name in ENVIRONMENT if os.environ.get(name)]
    rivals = {choice: Rival(choice, executor, tokens) for choice in ([", ".join(said)] if said else CHOICES)}
    report: dict[str, Any] = {**device_facts(executor.device), "target": pipeline.target_name, "dtype": pipeline.dtype}
    report["prefix"] = arguments.prefix
    for state, others in (("idle", 0), ("one core taken", 1)):
        with other_processes(others):
            report[state] = measured(rivals, arguments.seconds, arguments.turns)
        show(state, report[state])
    write_report(arguments.output, report)
    return 0


@contextlib.contextmanager
def other_processes(count: int) -> Iterator[None]:
    """So many processes that do nothing but use a core."""
    started = [subprocess.Popen([sys.executable, "-c", OTHER_PROCESS]) for _ in range(count)]
    try:
        time.sleep(0.5 if count else 0)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measured(rivals: dict[str, Rival], seconds: float, turns: int) -> dict[str, Any]:
    """Choice → what → mean and median milliseconds; under ``machine`` how the threads waited when they were done."""
    taken: dict[str, dict[str, list[float]]] = {choice: defaultdict(list) for choice in rivals}
    for turn, place in itertools.product(range(turns), range(len(rivals))):
        choice = list(rivals)[(turn + place) % len(rivals)]
        for name, call in rivals[choice].calls.items():
            call()
            ends = time.perf_counter() + seconds
            while time.perf_counter() < ends:
                began = time.perf_counter()
                call()
                taken[choice][name].append(time.perf_counter() - began)
    figures: dict[str, Any] = {}
    for choice, times in taken.items():
        waiting = rivals[choice].waiting
        figures[choice] = {"threads": waiting.describe(), "asleep": waiting.asleep, "changes": waiting.changes}
        for name, values in times.items():
            mean, median = statistics.fmean(values), statistics.median(values)
            figures[choice][name] = {"mean_ms": round(1e3 * mean, 2), "median_ms": round(1e3 * median, 2)}
    return figures


def show(state: str, figures: dict[str, Any]) -> None:
    for choice, times in figures.items():
        parts = [
            f"{name} {t['mean_ms']:.1f} ({t['median_ms']:.1f})" for name, t in times.items() if isinstance(t, dict)
        ]
        print(f"{state}, {choice}: mean (median) ms: {'; '.join(parts)}; {times['threads']}", flush=True)


if __name__ == "__main__":
    sys.exit(run_script(main))
