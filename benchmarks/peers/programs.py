"""Who is compared: programs, their weights, and how each is started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from spec_sdk.bench.peers.commands import llama_command, transformers_command
from spec_sdk.bench.peers.weights import KINDS, Weights

REPOSITORY = Path(__file__).parents[2]

FOUR_BIT = "4-bit"
"""The column of quantised weights; the other is named by its dtype."""
TRANSFORMERS, LLAMA = "transformers", "llama.cpp"
LOOKUP = ", prompt lookup"

OUR_PIPELINES = (("pipeline=vanilla",), ("pipeline=prompt_lookup", "policy=adaptive"), ("pipeline=suffix",), ())
"""Without options it is the pipeline of ``python -m spec_sdk``."""
ENTRY_POINT = "[spec_sdk]\ntasks.answer_requests = benchmarks.peers.our_task:AnswerRequests\n"


@dataclass(frozen=True)
class Program:
    """One that is compared. ``plain``: the name of plain decoding by the same program from the same weights.

    ``environment``: what is added to the environment of ours; None for other programs. ``missing``: why it cannot be
    started, where that is known beforehand.
    """

    name: str
    column: str
    command: list[str]
    plain: str
    environment: dict[str, str] | None = None
    adaptive: bool = False
    missing: str | None = None


@dataclass(frozen=True)
class Interpreters:
    """The Python that each program is installed in."""

    transformers: str = sys.executable
    llama: str = sys.executable


def programs(
    weights: Weights, dtype: str, interpreters: Interpreters, context: int, expected: int, registered: Path
) -> list[Program]:
    """All that can be compared on ``weights``, plain decoding of each before the rest.

    ``dtype``: of torch, for what is not 4-bit. ``context``: tokens of the longest prompt and its answer. ``expected``:
    new tokens that a program will be asked for. ``registered``: a directory in which our task was made known
    (:func:`register_task`).
    """
    ours = [f"task.expected={expected}", f"model.dtype={dtype}"]
    kind = KINDS[dtype]
    column = dtype if kind == "F32" else f"{dtype} / {kind}"
    four_bit = [*ours, "model.weights=int4", f"model.target={weights.four_bit or weights.directory}"]
    return [
        *_transformers(weights, dtype, column, interpreters.transformers),
        *_llama(weights.plain, f"{LLAMA} {kind}", column, interpreters.llama, context),
        *_ours([*ours, f"model.target={weights.directory}"], column, "", registered),
        *_llama(weights.four_bit, f"{LLAMA} {FOUR_BIT}", FOUR_BIT, interpreters.llama, context),
        *_ours(four_bit, FOUR_BIT, f" {FOUR_BIT}", registered),
    ]


def register_task(directory: Path) -> None:
    """Make ``task=answer_requests`` known to whoever has ``directory`` on its path: what installing a package does."""
    info = directory / "spec_sdk_peers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spec-sdk-peers\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINT, encoding="utf-8")


def _transformers(weights: Weights, dtype: str, column: str, python: str) -> list[Program]:
    plain, lookup = (transformers_command(python, weights.directory, dtype, lookup=lookup) for lookup in (False, True))
    return [
        Program(TRANSFORMERS, column, plain, TRANSFORMERS),
        Program(TRANSFORMERS + LOOKUP, column, lookup, TRANSFORMERS),
    ]


def _llama(file: Path | None, name: str, column: str, python: str, context: int) -> list[Program]:
    if file is None:
        missing = "it takes a GGUF file; give one as --model"
        return [Program(each, column, [], name, missing=missing) for each in (name, name + LOOKUP)]
    plain, lookup = (llama_command(python, file, context, lookup=lookup) for lookup in (False, True))
    return [Program(name, column, plain, name), Program(name + LOOKUP, column, lookup, name)]


def _ours(options: list[str], column: str, suffix: str, registered: Path) -> list[Program]:
    command = [sys.executable, "-m", "spec_sdk", "task=answer_requests", *options]
    plain = our_name(OUR_PIPELINES[0]) + suffix
    environment = {"PYTHONPATH": f"{registered}{os.pathsep}{REPOSITORY}"}
    return [
        Program(
            our_name(pipeline) + suffix,
            column,
            [*command, *pipeline],
            plain,
            environment,
            "policy=adaptive" in pipeline,
        )
        for pipeline in OUR_PIPELINES
    ]


def our_name(pipeline: tuple[str, ...]) -> str:
    """How a pipeline of ours is called in the report."""
    said = [option.removeprefix("pipeline=") for option in pipeline]
    return f"spec-sdk {' '.join(said) or 'default pipeline'}"
