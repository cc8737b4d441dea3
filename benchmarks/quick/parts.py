"""What ``benchmarks.quick`` measures: parts, each of which gives ratios by name. All models are the default ones.

A ratio says how many times as fast the first thing is as the second: in "suffix beside vanilla" tokens per second of
decoding, elsewhere one over seconds.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.draft_level import DRAFTERS, Proposing
from benchmarks.sampling import INPUT_SETS, SAMPLED, make_step, next_step
from benchmarks.support.ratios import Ratio
from spec_sdk.app import main
from spec_sdk.bench.answers import spread_prompts
from spec_sdk.bench.reading import read_bench
from spec_sdk.bench.records import VANILLA
from spec_sdk.bench.scripts import PROMPTS, build
from spec_sdk.bench.timing import times_of
from spec_sdk.bench.totals import decode_tokens_per_second
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

PIPELINES = ("prompt_lookup policy=adaptive", "suffix", "mixed", "easyspec_tree")
COUNT, LONGEST, NEW_TOKENS = 4, 1200, 48
NODES, PREFIX = (1, 8, 32), 256
LEVELS, WIDTH = 5, 4
GAMMA, VOCABULARY = 5, 49_152
TOKENS = [1 + 7919 * i % 8000 for i in range(PREFIX + max(NODES))]


@dataclass(frozen=True)
class Setting:
    """``rounds``: how often pipelines answer every prompt; ``seconds``: for each comparison of calls."""

    rounds: int
    seconds: float
    overrides: tuple[str, ...]


Part = Callable[[Setting], Mapping[str, Ratio]]


def pipelines(setting: Setting, temperature: float) -> Mapping[str, Ratio]:
    """Pipelines beside plain decoding of the same prompts: ``task=bench``, and of its records the decoding alone."""
    with tempfile.TemporaryDirectory() as directory:
        prompts, output = Path(directory) / "prompts.jsonl", Path(directory) / "run"
        texts = [prompt.text for prompt in spread_prompts(PROMPTS, COUNT, LONGEST)]
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        asked = {
            "task": "bench",
            "task.pipelines": json.dumps(PIPELINES),
            "task.temperatures": f"[{temperature}]",
            "task.rounds": setting.rounds,
            "prompt_file": prompts,
            "max_new_tokens": NEW_TOKENS,
            # an answer of three words says little of speed
            "ignore_eos": "true",
            "output_dir": output,
        }
        with contextlib.redirect_stdout(io.StringIO()) as tables:
            status = main([*(f"{name}={value}" for name, value in asked.items()), *setting.overrides])
        if status:
            raise SystemExit(f"error: task=bench ended with status {status}:\n{tables.getvalue()}")
        answers = read_bench(output).answers
    speeds = {(a.candidate, a.prompt, a.round): decode_tokens_per_second([a]) for a in answers}

    def of(name: str, prompt: str) -> list[float]:
        pairs = ((speeds[name, prompt, n], speeds[VANILLA, prompt, n]) for n in range(setting.rounds))
        return [ours / plain for ours, plain in pairs if ours and plain]

    asked_of = dict.fromkeys(answer.prompt for answer in answers)
    return {name: Ratio.of(of(name, prompt) for prompt in asked_of) for name in PIPELINES}


def passes(setting: Setting) -> Mapping[str, Ratio]:
    """Target passes over NODES nodes beside plain ones, and in other forms of the same weights."""
    forms = {
        "default": (),
        "packed": ("backend.native=false", "model.weights=dense"),
        "dense": ("model.weights=dense",),
    }
    sessions = {}
    for form, options in forms.items():
        pipeline = build("pipeline=vanilla", *setting.overrides, *options)
        sessions[form] = session = pipeline.models.session(pipeline.models.target)
        session.reserve(1, len(TOKENS))
        session.prefill(0, TOKENS[:PREFIX])
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for (form, session), nodes in itertools.product(sessions.items(), NODES):
        tree = TokenTree.chain(TOKENS[PREFIX], TOKENS[PREFIX + 1 : PREFIX + nodes])
        calls[form, nodes] = functools.partial(session.score, [0], [tree])
    times = times_of(calls, setting.seconds * len(calls))
    ratios = {
        f"plain pass beside {nodes} nodes": Ratio.of_times(times["default", nodes], times["default", 1])
        for nodes in NODES[1:]
    }
    for nodes in NODES:
        ratios[f"native beside packed torch, {nodes}"] = Ratio.of_times(times["packed", nodes], times["dense", nodes])
        ratios[f"stored bits beside dense, {nodes}"] = Ratio.of_times(times["dense", nodes], times["default", nodes])
    return ratios


def drafting(setting: Setting) -> Mapping[str, Ratio]:
    """A level of a draft beside a plain pass of the target, for each drafter with a model."""
    return {f"{name}: level beside plain pass": _level(options, setting) for name, options in DRAFTERS.items()}


def _level(options: Sequence[str], setting: Setting) -> Ratio:
    pipeline = build(*options, f"drafter.width={WIDTH}", *setting.overrides)
    proposing, plain = Proposing(pipeline, temperature=0.0), _plain_pass(pipeline)

    def propose(depth: int) -> None:
        proposing.commit()
        proposing.propose(depth)

    calls = {"deep": lambda: propose(LEVELS), "flat": lambda: propose(1), "pass": plain}
    times = times_of(calls, 3 * setting.seconds, most_rounds=300)
    levels = [(deep - flat) / (LEVELS - 1) for deep, flat in zip(times["deep"], times["flat"], strict=True)]
    try:
        return Ratio.of_times(times["pass"], levels)
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"drafting: drafts of {LEVELS} levels took no longer than those of one; other programs run"
        ) from error


def _plain_pass(pipeline: Pipeline) -> Callable[[], object]:
    session = pipeline.models.session(pipeline.models.target)
    session.reserve(1, len(TOKENS))
    session.prefill(0, TOKENS[:PREFIX])
    return functools.partial(session.score, [0], [TokenTree.root_only(TOKENS[PREFIX])])


@torch.no_grad()
def samplers(setting: Setting) -> Mapping[str, Ratio]:
    """A verification step of a chain by the fused sampler beside the reference, as benchmarks.sampling has it."""
    ratios = {}
    for dtype in (torch.float32, torch.bfloat16):
        device = torch.device("cpu")
        steps = [make_step(GAMMA, VOCABULARY, dtype, device, SAMPLED, seed) for seed in range(INPUT_SETS)]
        calls = {}
        for name in ("reference", "exact"):
            calls[name] = next_step(name, steps, SAMPLED, {})
        times = times_of(calls, 2 * setting.seconds)
        named = str(dtype).removeprefix("torch.")
        ratios[f"exact beside reference, {named}"] = Ratio.of_times(times["reference"], times["exact"])
    return ratios


PARTS: Mapping[str, Part] = {
    "greedy": functools.partial(pipelines, temperature=0.0),
    "sampled": functools.partial(pipelines, temperature=1.0),
    "passes": passes,
    "drafting": drafting,
    "samplers": samplers,
}
