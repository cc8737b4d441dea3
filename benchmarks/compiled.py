"""Compiled or captured passes against eager ones: single passes, and pipelines.

    python -m benchmarks.compiled model.dtype=bfloat16
    python -m benchmarks.compiled backend=cuda model.dtype=bfloat16 --pipelines vanilla,sd_chain

Both run in one process, turn by turn. Says first what compiling took (0 graphs compiled: they were on disk) and whether
both give the same greedy tokens; in half precision a near-tie may fall the other way. With one torch thread the
processor's time is taken, which other programs do not count in. Writes results/compiled.json.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.places import RESULTS
from spec_sdk.bench import timing
from spec_sdk.bench.answers import spread_prompts, tokens_of
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

ROWS = (1, 2, 4, 8, 16)
RIVALS = {"eager": "false", "compiled": "true"}


def main() -> int:
    parser = script_parser(__doc__, count=4, new_tokens=64, output=RESULTS / "compiled.json")
    parser.add_argument("--rounds", type=int, default=3, help="times that every pipeline answers them")
    parser.add_argument("--prefix", type=int, default=256, help="committed tokens before a pass")
    parser.add_argument("--seconds", type=float, default=5.0, help="per size of pass")
    parser.add_argument("--pipelines", default="vanilla,sd_chain,easyspec_paper,alspec")
    arguments = parser.parse_intermixed_args()
    start = time.perf_counter()
    rivals = pair("vanilla", arguments)
    report: dict[str, Any] = {
        **pipeline_facts(rivals["eager"]),
        "loading_s": round(time.perf_counter() - start, 1),
        "compiled": dict(rivals["compiled"].backend.compiled),
        "prefix": arguments.prefix,
        "pass_ms": passes(rivals, arguments),
        "pipelines": {name: pipelines(pair(name, arguments), arguments) for name in arguments.pipelines.split(",")},
    }
    write_report(arguments.output, report)
    return 0


def pair(name: str, arguments: argparse.Namespace) -> dict[str, Pipeline]:
    """One pipeline without and with compilation."""
    return {
        rival: build(f"pipeline={name}", *arguments.overrides, f"backend.compile={value}")
        for rival, value in RIVALS.items()
    }


def passes(rivals: dict[str, Pipeline], arguments: argparse.Namespace) -> dict[int, Any]:
    """Rows → milliseconds of a target pass over a chain of so many nodes, each way."""
    device = rivals["eager"].backend.device
    tokens = [1 + i % 1000 for i in range(arguments.prefix + max(ROWS))]
    sessions = {name: pipeline.models.session(pipeline.models.target) for name, pipeline in rivals.items()}
    for session in sessions.values():
        session.reserve(1, len(tokens))
        session.prefill(0, tokens[: arguments.prefix])
    figures: dict[int, Any] = {}
    for rows in ROWS:
        tree = TokenTree.chain(tokens[arguments.prefix], tokens[arguments.prefix + 1 : arguments.prefix + rows])
        calls: dict[str, Callable[[], object]] = {
            name: functools.partial(session.score, [0], [tree]) for name, session in sessions.items()
        }
        times = timing.median_seconds(calls, arguments.seconds, clock=timing.own_clock(device))
        figures[rows] = {name: round(1e3 * seconds, 3) for name, seconds in times.items()}
        figures[rows]["ratio"] = round(times["eager"] / times["compiled"], 3)
        print(
            f"pass over {rows:2} rows behind {arguments.prefix}: eager {figures[rows]['eager']:.2f} ms, compiled "
            f"{figures[rows]['compiled']:.2f} ms, {figures[rows]['ratio']:.2f}x",
            flush=True,
        )
    return figures


def pipelines(rivals: dict[str, Pipeline], arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of a pipeline over the prompts, each way, and whether both give the same tokens."""
    eager = rivals["eager"]
    prompts = [tokens_of(eager, prompt) for prompt in spread_prompts(arguments.prompts, arguments.count, longest=2000)]
    clock = timing.own_clock(eager.backend.device)
    answers: dict[str, list[list[int]]] = {}
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(arguments.rounds + 1):
        for name in list(rivals)[:: 1 if turn % 2 else -1]:
            start = clock()
            answers[name] = [_answer(rivals[name], prompt, arguments.new_tokens) for prompt in prompts]
            # the first turn warms up: it captures what is captured when a size first comes
            taken[name] += [clock() - start] * (turn > 0)
    count = sum(map(len, answers["eager"]))
    speeds = {name: round(count / min(seconds), 2) for name, seconds in taken.items()}
    figures = {
        "tokens_per_s": speeds,
        "ratio": round(speeds["compiled"] / speeds["eager"], 3),
        "equal_tokens": answers["eager"] == answers["compiled"],
        "compiled": dict(rivals["compiled"].backend.compiled),
    }
    print(
        f"{eager.name:16} eager {speeds['eager']:.1f} tokens/s, compiled {speeds['compiled']:.1f}, "
        f"{figures['ratio']:.2f}x, {'the same' if figures['equal_tokens'] else 'other'} tokens",
        flush=True,
    )
    return figures


def _answer(pipeline: Pipeline, prompt: list[int], new_tokens: int) -> list[int]:
    stream = pipeline.stream(prompt, max_new_tokens=new_tokens, ignore_eos=True)
    return [token for tokens in stream for token in tokens]


if __name__ == "__main__":
    sys.exit(run_script(main))
