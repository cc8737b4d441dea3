"""Overrides as people type them, before Hydra's grammar sees them.

Hydra reads ``prompt=Hello, world`` as a choice of two and stumbles over ``prompt=it's``. A prompt is a text and a path
is a path, so their values are quoted here where Hydra would misread them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from spec_sdk.errors import UserError
from spec_sdk.options import literal

PATH_OPTIONS = ("prompt_file", "output_dir", "model.target", "model.draft")


def quote_texts(overrides: Sequence[str], sweep: bool) -> list[str]:
    """Quote the value of ``prompt=`` and of path options where Hydra's grammar would not take it as one text.

    Left alone are ``null``, an empty value, and one that is quoted as a whole already. In a sweep, whatever Hydra can
    read is left to it, so that ``prompt=a,b`` are two jobs.
    """
    return [_quote(override, sweep) for override in overrides]


def _quote(override: str, sweep: bool) -> str:
    key, equals, value = override.partition("=")
    bare = key.lstrip("+")
    if not equals or value in ("", "null") or (bare != "prompt" and bare not in PATH_OPTIONS):
        return override
    parsed = _parse(override)
    if sweep:
        readable = parsed is not None
    elif bare == "prompt":
        quoted = value[0] in "'\"" and value[-1] == value[0]
        readable = parsed is not None and quoted and not parsed.is_sweep_override()
    else:
        readable = parsed is not None and not parsed.is_sweep_override()
    return override if readable else f"{key}={as_text(value)}"


def as_text(value: str) -> str:
    """``value`` as a quoted string of Hydra's grammar that stands for exactly this text, ``${`` included."""
    return QuotedString(literal(value), Quote.single).with_quotes()


def search_path_override(directory: str, option: str) -> str:
    """The override that adds a directory of YAML. Raises UserError, naming ``option``, if it is none."""
    path = Path(directory).expanduser().absolute()
    if not path.is_dir():
        raise UserError(f"{option}: {directory} is not a directory")
    return f'hydra.searchpath=["file://{path}"]'


def _parse(override: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException:
        return None


def parse(overrides: Sequence[str]) -> list[Override]:
    """Hydra's reading of all overrides. Raises UserError for one it cannot read."""
    parsed = []
    for override in overrides:
        reading = _parse(override)
        if reading is None:
            raise UserError(
                f"'{override}' cannot be read as option=value; values with special characters need quotes inside the "
                "shell's: \"option='some, text'\""
            )
        parsed.append(reading)
    return parsed
