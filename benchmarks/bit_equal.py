"""Greedy answers and their logits beside plain decoding's, bit by bit, and what ``deterministic=true`` costs.

    python -m benchmarks.bit_equal proof
    python -m benchmarks.bit_equal cost

``proof``: plain decoding answers every prompt alone and in an engine of its own; then pipelines answer the same
prompts, several at once in one engine whose slots keep what earlier requests left. For every new token the row of
logits that it was chosen by is compared by its bits. ``--ordinary`` leaves deterministic=true out. It begins no more
prompts after ``--seconds``, and writes how many it has compared to results/bit_equal.json after every few. ``--resume``
goes on with those that are missing there. Any first part of a run is spread over the whole file.

``cost``: the same pipelines with deterministic=true and without it, on the same prompts, by turns, one prompt at a
time, in new caches: seconds of prefill and of decoding, by the clock and of the processor, and the ratio of the two
ways, the median over prompts. Writes results/bit_equal_cost.json. Run it on a machine that does nothing else.

Both take options of spec_sdk, such as model.dtype=bfloat16.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.places import RESULTS
from spec_sdk.bench.answers import spread_prompts, tokens_of
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.bench.turns import rotated
from spec_sdk.config.composing import settings_for
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.testing.answers_by_bits import Answered, serve

Measured = dict[int, list["Seconds"]]
"""Of each prompt, in every round."""

ROUNDS_OF_FILE = 10
"""How often the proof goes through the file of prompts: every time it takes others."""


def main() -> int:
    parser = script_parser(__doc__, count=240, new_tokens=128, overrides=None)
    parser.add_argument("what", choices=["proof", "cost"])
    parser.add_argument("overrides", nargs="*", default=[], help="options of spec_sdk, such as model.dtype=bfloat16")
    parser.add_argument("--pipelines", nargs="+", default=["suffix", "easyspec_paper", "layer_skip_tree"])
    parser.add_argument("--together", type=int, default=4, help="proof: prompts that are answered at once")
    parser.add_argument("--ordinary", action="store_true", help="proof: without deterministic=true")
    parser.add_argument("--seconds", type=float, default=1e9, help="proof: begin no more prompts after so many")
    parser.add_argument("--resume", action="store_true", help="proof: go on with the prompts that --output lacks")
    parser.add_argument("--rounds", type=int, default=2, help="cost: how often every prompt is answered")
    add_output(parser)
    options = parser.parse_intermixed_args()
    return proof(options) if options.what == "proof" else cost(options)


def proof(options: Any) -> int:
    shared = [*options.overrides, *([] if options.ordinary else ["deterministic=true"])]
    vanilla = build("pipeline=vanilla", *shared)
    pipelines = {name: built(name, shared, vanilla) for name in options.pipelines}
    every = spread_prompts(options.prompts, options.count)
    prompts = [tokens_of(vanilla, each) for start in range(ROUNDS_OF_FILE) for each in every[start::ROUNDS_OF_FILE]]
    engines = {name: pipeline.new_engine(options.together) for name, pipeline in pipelines.items()}
    output = options.output or RESULTS / "bit_equal.json"
    report: dict[str, Any] = {
        **pipeline_facts(vanilla),
        "overrides": shared,
        "prompt_file": options.prompts.name,
        "of_prompts": len(prompts),
        "new_tokens": options.new_tokens,
        "together": options.together,
    }
    earlier = earlier_part(output, report, list(pipelines)) if options.resume else {}
    found = {name: Found(**earlier["pipelines"][name] if earlier else {}) for name in pipelines}
    began, answered = time.perf_counter() - earlier.get("seconds", 0), earlier.get("prompts", 0)
    until = time.perf_counter() + options.seconds
    for first in range(answered, len(prompts), options.together):
        if time.perf_counter() > until:
            break
        asked = prompts[first : first + options.together]
        # each alone, in caches that nobody wrote to
        expected = [serve(vanilla.new_engine(), [prompt], options.new_tokens)[0] for prompt in asked]
        for name, engine in engines.items():
            for ours, theirs in zip(serve(engine, asked, options.new_tokens), expected, strict=True):
                found[name].add(ours, theirs)
        answered += len(asked)
        report |= {"prompts": answered, "seconds": round(time.perf_counter() - began)}
        report["pipelines"] = {name: each.as_data() for name, each in found.items()}
        write_report(output, report)
        told = ", ".join(f"{name}: {each.equal} of {each.answers}" for name, each in found.items())
        print(f"{answered} prompts, answers equal to the bit: {told}", flush=True)
    return 0 if options.ordinary or all(each.equal == each.answers for each in found.values()) else 1


def earlier_part(output: Path, report: Mapping[str, Any], pipelines: Sequence[str]) -> dict[str, Any]:
    """What an earlier run wrote that asked for the same on the same machine; empty if there is none.

    Raises UserError for a file that is another run's: counts of two machines, or of other options, are not one proof.
    """
    if not output.exists():
        return {}
    try:
        earlier: dict[str, Any] = json.loads(output.read_text())
        known = {**{key: earlier.get(key) for key in report}, "pipelines": list(earlier["pipelines"])}
    except (ValueError, KeyError, AttributeError):
        raise UserError(f"--resume: {output} is no report of a proof; leave --resume out to write it anew") from None
    for key, value in {**report, "pipelines": list(pipelines)}.items():
        # the description says what else the machine did
        if key not in ("backend", "waiting") and known[key] != value:
            raise UserError(f"--resume: {output} has {key} {known[key]}, this run {value}; name another --output")
    return earlier


@dataclass
class Found:
    """Answers beside plain decoding's. ``equal``: in all tokens and all bits of their logits."""

    answers: int = 0
    equal: int = 0
    same_tokens: int = 0
    tokens: int = 0
    same_rows: int = 0
    rows_compared: int = 0

    def add(self, ours: Answered, theirs: Answered) -> None:
        self.answers += 1
        self.tokens += len(ours.tokens)
        self.same_tokens += ours.tokens == theirs.tokens
        self.equal += ours == theirs
        # rows after a token that differs are of another text
        common = next(
            (i for i, pair in enumerate(zip(ours.tokens, theirs.tokens, strict=False)) if pair[0] != pair[1]),
            min(len(ours.tokens), len(theirs.tokens)) - 1,
        )
        compared = list(zip(ours.rows[: common + 1], theirs.rows[: common + 1], strict=True))
        self.rows_compared += len(compared)
        self.same_rows += sum(one == other for one, other in compared)

    def as_data(self) -> dict[str, int]:
        return dict(vars(self))


def built(name: str, overrides: Sequence[str], beside: Pipeline) -> Pipeline:
    """A pipeline on the models that are loaded."""
    return build_pipeline(settings_for([f"pipeline={name}", *overrides]), Registry.discover(), beside=beside)


def cost(options: Any) -> int:
    names = ["vanilla", *options.pipelines]
    ways = {}
    for way, extra in (("ordinary", []), ("deterministic", ["deterministic=true"])):
        vanilla = build("pipeline=vanilla", *options.overrides, *extra)
        for name in names:
            ways[name, way] = built(name, [*options.overrides, *extra], vanilla)
    some = next(iter(ways.values()))
    prompts = [tokens_of(some, each) for each in spread_prompts(options.prompts, options.count)]
    seconds: dict[tuple[str, str], Measured] = {key: {} for key in ways}
    for pipeline in ways.values():
        timed(pipeline, prompts[0], 8)
    for turn in range(options.rounds):
        for number, prompt in enumerate(prompts):
            for key in rotated(ways, turn + number):
                seconds[key].setdefault(number, []).append(timed(ways[key], prompt, options.new_tokens))
    report: dict[str, Any] = {
        **pipeline_facts(some),
        "overrides": options.overrides,
        "prompts": [len(prompt) for prompt in prompts],
        "new_tokens": options.new_tokens,
        "rounds": options.rounds,
        "load_average": list(os.getloadavg()),
        "pipelines": {name: figures(seconds[name, "ordinary"], seconds[name, "deterministic"]) for name in names},
    }
    write_report(options.output or RESULTS / "bit_equal_cost.json", report)
    for name, row in report["pipelines"].items():
        print(name, row, flush=True)
    return 0


@dataclass(frozen=True)
class Seconds:
    """What an answer took: seconds of the clock, and of the processor, which other processes change less."""

    prefill_s: float
    decoding_s: float
    prefill_cpu_s: float
    decoding_cpu_s: float

    @property
    def both_s(self) -> float:
        return self.prefill_s + self.decoding_s

    @property
    def both_cpu_s(self) -> float:
        return self.prefill_cpu_s + self.decoding_cpu_s


def timed(pipeline: Pipeline, prompt: Sequence[int], new_tokens: int) -> Seconds:
    """An answer in a new engine, no cache of which holds the prompt."""
    engine, prefill = pipeline.new_engine(), 0.0
    began, used = time.perf_counter(), time.process_time()
    fed, used_then = began, used

    def emit(event: Mapping[str, Any]) -> None:
        nonlocal prefill, fed, used_then
        if event["event"] == "prefill":
            prefill, fed, used_then = event["seconds"], time.perf_counter(), time.process_time()

    for _ in engine.stream(TokenRequest(prompt, max_new_tokens=new_tokens, ignore_eos=True, emit=emit)):
        pass
    ended, used_at_end = time.perf_counter(), time.process_time()
    return Seconds(prefill, ended - fed, used_then - used, used_at_end - used_then)


def figures(ordinary: Measured, deterministic: Measured) -> dict[str, float]:
    """Median seconds of both ways, and the median over prompts of the ratio of the least of each."""
    row: dict[str, float] = {}
    for part in ("prefill", "decoding", "both"):
        for unit in ("s", "cpu_s"):
            pairs = [
                tuple(min(getattr(each, f"{part}_{unit}") for each in way[i]) for way in (ordinary, deterministic))
                for i in ordinary
            ]
            row[f"{part}_{unit}_ordinary"] = statistics.median(one for one, _ in pairs)
            row[f"{part}_{unit}_deterministic"] = statistics.median(other for _, other in pairs)
            row[f"{part}_{unit}_ratio"] = statistics.median(other / one for one, other in pairs if one)
    return {key: round(value, 4) for key, value in row.items()}


if __name__ == "__main__":
    sys.exit(run_script(main))
