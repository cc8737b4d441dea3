"""``--help``: what the program is, the options of every run, what there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.config.composing import groups, options_of, pipeline_summaries
from spec_sdk.config.option import as_yaml
from spec_sdk.installed import heading
from spec_sdk.option_types import declared_options
from spec_sdk.options import describe_options
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import ModelSettings, RunSettings, SweepSettings
from spec_sdk.tables import WIDTH, wrapped
from spec_sdk.version import __version__

OPTIONS = (("", RunSettings), ("model.", ModelSettings), ("sampling.", SamplingParams), ("sweep.", SweepSettings))

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
  python -m spec_sdk pipeline=sd_chain compare=true prompt='Name ten colours.'
  python -m spec_sdk pipeline=sd_chain drafter.width=2 sampling.temperature=1
  python -m spec_sdk --multirun pipeline=vanilla,sd_chain,easyspec_tree
"""


def help_text(search_path: Sequence[str] = ()) -> str:
    """The whole of ``--help``, the pipelines and plugins of third parties and of ``search_path`` included."""
    listed = ("pipeline", "task")
    choices = [
        (f"{group}=", ", ".join(options_of(group, search_path))) for group in groups(search_path) if group not in listed
    ]
    tasks = [(name, heading("task", name)) for name in options_of("task")]
    return "\n".join(
        [
            f"spec-sdk {__version__}: speculation on tokens, layers and attention, in one loop.",
            "",
            "usage: python -m spec_sdk [option=value ...] [flags]",
            "",
            "Text goes to stdout; progress and tables to stderr.",
            "",
            "Options and their defaults (task=plugins lists those of all plugins)",
            _columns([row for prefix, config in OPTIONS for row in _rows(prefix, config)]),
            "",
            "Pipelines (pipeline=)",
            _columns(list(pipeline_summaries(search_path).items())),
            "",
            "Tasks (task=)",
            _columns(tasks),
            "",
            "Parts of a pipeline; their options hang below them, as in drafter.width=4",
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
    comments = {name: declared.comment() for name, declared in declared_options(config).items()}
    defaults = {option["name"]: option["default"] for option in describe_options(config)}
    return [
        (f"{prefix}{name}={'' if value is None else as_yaml(value)}", comments[name])
        for name, value in defaults.items()
    ]


def _columns(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    indent = min(max(len(name) for name, _ in rows), WIDEST_NAME) + 4
    lines = []
    for name, text in rows:
        begin = f"  {name}".ljust(indent)
        if len(begin) > indent:
            lines.append(begin)
            begin = " " * indent
        lines.append(wrapped(f"{begin}{text}", WIDTH, indent))
    return "\n".join(lines)
