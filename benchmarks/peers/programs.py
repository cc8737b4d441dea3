"""Who is compared: programs, their weights, and how each is started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.weights import KINDS, Weights
from benchmarks.peers.worker import REPOSITORY

FOUR_BIT = "4-bit"
"""The column of quantised weights; the other is named by its dtype."""
TRANSFORMERS, LLAMA = "transformers", "llama.cpp"
LOOKUP = ", prompt lookup"

TRANSFORMERS_LOOKUP = 10
"""What transformers' documentation uses for ``prompt_lookup_num_tokens``."""
LLAMA_LOOKUP = 2
"""What llama-cpp-python's README gives as ``num_pred_tokens`` for machines without a GPU."""

LEAST_CONTEXT = 128
"""What llama.cpp's worker needs to find the number of threads."""

OUR_PIPELINES = (("pipeline=vanilla",), ("pipeline=prompt_lookup", "policy=adaptive"), ("pipeline=suffix",), ())
"""Without options it is the pipeline of ``python -m spec_sdk``."""
ENTRY_POINT = "[spec_sdk]\ntasks.answer_requests = benchmarks.peers.our_task:AnswerRequests\n"


@dataclass(frozen=True)
class Program:
    """One that is compared. ``plain``: the name of plain decoding by the same program from the same weights.

    ``missing``: why it cannot be started, where that is known beforehand.
    """

    name: str
    column: str
    command: list[str]
    plain: str
    environment: dict[str, str] = field(default_factory=dict)
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
    command = [python, "-m", "benchmarks.peers.transformers_worker", str(weights.directory), "--dtype", dtype]
    lookup = [*command, "--lookup", str(TRANSFORMERS_LOOKUP)]
    return [
        Program(TRANSFORMERS, column, command, TRANSFORMERS),
        Program(TRANSFORMERS + LOOKUP, column, lookup, TRANSFORMERS),
    ]


def _llama(file: Path | None, name: str, column: str, python: str, context: int) -> list[Program]:
    missing = "it takes a GGUF file; give one as --model" if file is None else None
    command = [python, "-m", "benchmarks.peers.llama_worker", str(file)]
    # a draft may go beyond what is asked for
    plain, lookup = (
        [*command, "--context", str(max(context, LEAST_CONTEXT))],
        [*command, "--context", str(max(context, LEAST_CONTEXT) + LLAMA_LOOKUP)],
    )
    lookup += ["--lookup", str(LLAMA_LOOKUP)]
    return [
        Program(name, column, plain, name, missing=missing),
        Program(name + LOOKUP, column, lookup, name, missing=missing),
    ]


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
