"""``--help``: what the program is, the options of every run, what there is to choose from."""

from __future__ import annotations

import dataclasses
import textwrap

from spec_sdk.config.composing import groups, options_of, pipeline_summaries
from spec_sdk.config.option import as_yaml, declared_of
from spec_sdk.installed import heading
from spec_sdk.options import describe_options
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import ModelSettings, RunSettings
from spec_sdk.version import __version__

OPTIONS = (("", RunSettings), ("model.", ModelSettings), ("sampling.", SamplingParams))

WIDEST_NAME = 24

FLAGS = (
    ("-m, --multirun", "run every combination of comma-separated values, one directory each, one table at the end"),
    ("--cfg job", "print the config instead of running it"),
    ("--config-dir DIR", "look for YAML in DIR as well (DIR/pipeline/mine.yaml becomes pipeline=mine)"),
    ("--hydra-help", "what else Hydra's command line can do"),
    ("--version", "print the version"),
)

EXAMPLES = """\
  python -m spec_sdk prompt='Why is the sky blue?'
  python -m spec_sdk pipeline=sd_chain compare=true prompt_file=spec_bench_sample
  python -m spec_sdk drafter.width=2 policy.depth=6 sampling.temperature=0.8
  python -m spec_sdk --multirun pipeline=vanilla,sd_chain,easyspec_tree
"""


def help_text() -> str:
    """The whole of ``--help``, third parties' pipelines and plugins included."""
    listed = ("pipeline", "task")
    choices = [(f"{group}=", ", ".join(options_of(group))) for group in groups() if group not in listed]
    tasks = [(name, heading("task", name)) for name in options_of("task")]
    return "\n".join(
        [
            f"spec-sdk {__version__}: speculative decoding on three levels - tokens, layers, attention - in one loop.",
            "",
            "usage: python -m spec_sdk [option=value ...] [flags]",
            "",
            "Text goes to stdout; progress and tables to stderr.",
            "",
            "Options and their defaults (docs/configuration.md has those of all plugins, and so has task=plugins)",
            _columns([row for prefix, config in OPTIONS for row in _rows(prefix, config)]),
            "",
            "Pipelines (pipeline=)",
            _columns(list(pipeline_summaries().items())),
            "",
            "Tasks (task=)",
            _columns(tasks),
            "",
            "Parts of a pipeline, each to be chosen anew; their options hang below them, as in drafter.width=4",
            _columns(choices),
            "",
            "Flags",
            _columns(FLAGS),
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def _rows(prefix: str, config: type) -> list[tuple[str, str]]:
    comments = {field.name: declared_of(field).comment() for field in dataclasses.fields(config)}
    defaults = {option["name"]: option["default"] for option in describe_options(config)}
    return [
        (f"{prefix}{name}={'' if value is None else as_yaml(value)}", comments[name])
        for name, value in defaults.items()
    ]


def _columns(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    width = min(max(len(name) for name, _ in rows), WIDEST_NAME) + 4
    indent = " " * width
    lines = []
    for name, text in rows:
        begin = f"  {name}".ljust(width - 2) + "  "
        lines.append(textwrap.fill(text, 110, initial_indent=begin, subsequent_indent=indent).rstrip())
    return "\n".join(lines)
