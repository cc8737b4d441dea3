"""What scripts that measure pipelines share: options, the facts of a report, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spec_sdk.bench.machine import machine_facts
from spec_sdk.bench.output_option import add_output
from spec_sdk.config.composing import settings_for
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.prompts import SHIPPED, SPEC_BENCH_SAMPLE
from spec_sdk.registry import Registry

PROMPTS = SHIPPED[SPEC_BENCH_SAMPLE]
"""What a script takes without ``--prompts``. Published figures were taken with the whole of Spec-Bench."""


def script_parser(
    doc: str | None,
    *,
    count: int | None = None,
    new_tokens: int | None = None,
    output: Path | None = None,
    overrides: Sequence[str] | None = (),
) -> argparse.ArgumentParser:
    """A parser with the options that scripts have in common, those whose default is given; the caller adds its own.

    ``doc``: the script's docstring, of which the first line is shown. ``count``: of ``--prompts``. ``overrides``: the
    default of what is typed without a name, options of spec_sdk; None: there are none. It takes
    ``parse_intermixed_args`` to type them anywhere.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if count is not None:
        parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL of prompts, Spec-Bench's layout")
        parser.add_argument("--count", type=int, default=count, help="prompts taken, evenly spread over those that fit")
    if new_tokens is not None:
        parser.add_argument("--new-tokens", type=int, default=new_tokens, help="of every answer, at most")
    if output is not None:
        add_output(parser, output)
    if overrides is not None:
        help_text = "options of spec_sdk, such as model.dtype=bfloat16"
        parser.add_argument("overrides", nargs="*", default=list(overrides), help=help_text)
    return parser


def build(*overrides: str) -> Pipeline:
    """The pipeline that these command-line overrides name. Raises UserError."""
    return build_pipeline(settings_for(overrides), Registry.discover())


def pipeline_facts(pipeline: Pipeline) -> dict[str, Any]:
    """What a report begins with: the machine, how the backend uses it, and the target."""
    return {
        **machine_facts(pipeline.backend.hardware),
        "backend": pipeline.backend.describe(),
        "target": pipeline.target_name,
        "dtype": pipeline.dtype,
        "rounds_rows": pipeline.models.target.executor.rounds_rows,
    }


def run_script(main: Callable[[], int]) -> int:
    """The exit status of ``main``; 2, with a line on stderr, for bad input."""
    try:
        return main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
