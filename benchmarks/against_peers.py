"""Greedy decoding here beside Hugging Face transformers and llama.cpp: same weights, same prompts, same machine.

    python -m benchmarks.against_peers --llama-python /path/to/env/bin/python

Every program runs in a process of its own, started as its users start it, with no setting of ours for its threads; ours
is ``python -m spec_sdk``. All stay loaded; one prompt is given to one program at a time, the order rotates, and the
others are stopped meanwhile. Each makes the same number of new tokens of the same prompt tokens and goes on after end
tokens. Right before a prompt is timed, a program answers another one of four tokens, so that none finds the prompt's
beginning in its cache. Programs that cannot be started are left out with one line. Writes results/against_peers.json.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.figures import report_of
from benchmarks.peers.programs import REPOSITORY, Interpreters, Program, programs, register_task
from benchmarks.places import RESULTS
from spec_sdk.bench.answers import Prompt, spread_prompts
from spec_sdk.bench.peers.interpreter import found
from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.weights import KINDS, Weights, weights_of
from spec_sdk.bench.peers.worker import NotAvailable, PeerError, Timing, Worker, peer_worker
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import PROMPTS, run_script
from spec_sdk.bench.turns import rotated
from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.source_wheel import DEFAULT_NAME
from spec_sdk.prompts import encode

BETWEEN_TOKENS = 4
WARM_UP_TOKENS = 16
LEAST_NEW_TOKENS = 32
"""A program that drafts may give fewer at once, and its decoding could not be told from its first tokens."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a .gguf file or a directory; default: SmolLM2-135M-Instruct, Q4_1")
    parser.add_argument(
        "--dtype", choices=KINDS, default="bfloat16", help="of what is not 4-bit; llama.cpp: F16 or F32"
    )
    parser.add_argument("--file", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
    parser.add_argument("--prompts", type=int, default=12, help="how many, evenly over the file's tasks")
    parser.add_argument("--longest", type=int, default=2500, help="characters of a prompt")
    parser.add_argument("--new-tokens", type=int, default=64, help=f"of every answer, at least {LEAST_NEW_TOKENS}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="programs, such as 'spec-sdk *'")
    parser.add_argument("--llama-python", default=sys.executable, help="the Python that has llama-cpp-python")
    parser.add_argument("--transformers-python", default=sys.executable, help="the Python that has transformers")
    parser.add_argument("--output", type=Path, default=RESULTS / "against_peers.json")
    arguments = parser.parse_args(argv)
    for option in ("prompts", "rounds"):
        if getattr(arguments, option) < 1:
            parser.error(f"--{option}: {getattr(arguments, option)} must be at least 1")
    if arguments.new_tokens < LEAST_NEW_TOKENS:
        parser.error(f"--new-tokens: {arguments.new_tokens} must be at least {LEAST_NEW_TOKENS}")
    try:
        weights = weights_of(arguments.model, KINDS[arguments.dtype])
        prompts = by_task(arguments.file, arguments.prompts, arguments.longest)
        tokens = prompt_tokens(weights, prompts)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    interpreters = Interpreters(found(arguments.transformers_python), found(arguments.llama_python))
    with contextlib.ExitStack() as stack:
        registered = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        register_task(registered)
        longest = max(map(len, tokens)) + arguments.new_tokens
        every = programs(
            weights, arguments.dtype, interpreters, longest, len(tokens) * arguments.new_tokens, registered
        )
        chosen = [p for p in every if any(fnmatch.fnmatchcase(p.name, name) for name in arguments.only)]
        workers = started(chosen, stack)
        if not workers:
            raise SystemExit("error: none of the programs could be started")
        for worker in workers.values():
            # what a program prepares when it is first used is no part of an answer
            worker.ask(Request(tokens[0], min(WARM_UP_TOKENS, arguments.new_tokens)))
        answers = measure(workers, tokens, arguments.new_tokens, arguments.rounds)
        left = {name: workers[name] for name in answers}
        facts = {name: {**w.facts, "resident_bytes": w.resident_bytes()} for name, w in left.items()}
    figures, aims = report_of(chosen, answers, [prompt.task for prompt in prompts])
    report = {
        "machine": machine(facts),
        "model": DEFAULT_NAME if arguments.model is None else arguments.model.name,
        "dtype": arguments.dtype,
        "new_tokens": arguments.new_tokens,
        "rounds": arguments.rounds,
        "prompts": [{"task": p.task, "tokens": len(t)} for p, t in zip(prompts, tokens, strict=True)],
        "programs": {name: {**figures[name], "facts": facts[name]} for name in figures},
        "aims": aims,
    }
    show(report)
    write_report(arguments.output, report)
    return 0


def by_task(path: Path, count: int, longest: int) -> list[Prompt]:
    """``count`` prompts of at most ``longest`` characters, the file's tasks in turn, so that each gives as many."""
    tasks: dict[str, list[Prompt]] = {}
    for prompt in spread_prompts(path, 10**6, longest):
        tasks.setdefault(prompt.task, []).append(prompt)
    most = max(map(len, tasks.values()), default=0)
    turns = [prompts[i] for i in range(most) for prompts in tasks.values() if i < len(prompts)]
    if not turns:
        raise SystemExit(f"error: --file: {path} has no prompt of at most {longest} characters")
    return turns[:count]


def prompt_tokens(weights: Weights, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids, as a chat where the model has a chat template: those that every program is given."""
    tokenizer = open_checkpoint(str(weights.directory)).tokenizer
    return [encode(tokenizer, prompt.text, chat=None) for prompt in prompts]


def started(chosen: Sequence[Program], stack: contextlib.ExitStack) -> dict[str, Worker]:
    """The workers of the programs that are there, by name; they are loaded one after the other."""
    workers = {}
    for program in chosen:
        try:
            if program.missing is not None:
                raise NotAvailable(program.missing)
            workers[program.name] = stack.enter_context(_worker(program))
            print(f"loaded: {program.name}", file=sys.stderr, flush=True)
        except NotAvailable as reason:
            print(f"skipped: {program.name}: {reason}", file=sys.stderr, flush=True)
    return workers


def _worker(program: Program) -> contextlib.AbstractContextManager[Worker]:
    if program.environment is None:
        return peer_worker(program.command)
    return Worker(program.command, program.environment, REPOSITORY)


def measure(
    workers: dict[str, Worker], prompts: Sequence[Sequence[int]], new_tokens: int, rounds: int
) -> dict[str, list[list[Timing]]]:
    """Every program's answers to all prompts in each round, but for those that ended before."""
    answers: dict[str, list[list[Timing]]] = {name: [[] for _ in range(rounds)] for name in workers}
    for turn, (i, prompt, name) in enumerate(turns(list(workers), prompts, rounds)):
        if turn % len(workers) == 0:
            print(f"round {i + 1}: {turn // len(workers) % len(prompts) + 1}/{len(prompts)}", file=sys.stderr)
        if name not in answers:
            continue
        between = prompt[0] + 1 if prompt[0] == 0 else prompt[0] - 1
        try:
            workers[name].ask(Request([between] * BETWEEN_TOKENS, 1))
            answers[name][i].append(workers[name].ask(Request(list(prompt), new_tokens)))
        except PeerError as reason:
            print(f"left out: {name}: {reason}", file=sys.stderr, flush=True)
            del answers[name]
    return answers


def turns(
    names: Sequence[str], prompts: Sequence[Sequence[int]], rounds: int
) -> Iterator[tuple[int, Sequence[int], str]]:
    """Round, prompt and program of every turn; each prompt begins with another program."""
    for round_ in range(rounds):
        for i, prompt in enumerate(prompts):
            for name in rotated(names, round_ + i):
                yield round_, prompt, name


def machine(facts: dict[str, Any]) -> dict[str, Any]:
    """Machine and time, for the report."""
    described = [f["device"] for f in facts.values() if "device" in f]
    return {
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "processor": described[0] if described else platform.processor(),
        "load_average": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def show(report: dict[str, Any]) -> None:
    """The table and the aims, on stdout."""
    print(f"{report['machine']['processor']}; {report['model']}; {len(report['prompts'])} prompts × {report['rounds']}")
    print(f"{'':46}{'tokens/s':>9}{'rounds':>13}{'median':>8}{'first s':>9}{'decode/s':>9}{'equal':>7}")
    column = None
    for name, row in report["programs"].items():
        if row["column"] != column:
            column = row["column"]
            print(column)
        low, high = min(row["rounds_tokens_per_s"]), max(row["rounds_tokens_per_s"])
        print(
            f"  {name:44}{row['tokens_per_s']:9.1f}{f'{low:.1f}–{high:.1f}':>13}"
            f"{row['prompt_tokens_per_s']['median']:8.1f}{row['first_token_s']['median']:9.3f}"
            f"{row['decode_tokens_per_s']:9.1f}{row.get('answers_equal_to_plain', '-'):>7}"
        )
    for aim in report["aims"]:
        mark = "reached" if aim["reached"] else "missed"
        about = "" if aim["prefill"] == "included" else ", prefill apart"
        print(f"{mark}: {aim['program']} over {aim['over']}{about}: {aim['ratio']:.2f} (aim: {aim['least']})")


if __name__ == "__main__":
    sys.exit(run_script(main))
