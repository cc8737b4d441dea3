"""Overrides as people type them, before Hydra's grammar sees them.

Hydra reads ``prompt=Hello, world`` as a choice of two and stumbles over ``prompt=it's``. A prompt is a text and a path
is a path, so their values are quoted here where Hydra would misread them.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from spec_sdk.config.user_yaml import UserYaml
from spec_sdk.errors import UserError
from spec_sdk.files import expanded, names_in, shortened
from spec_sdk.options import literal

SEARCH_PATH = "hydra.searchpath"
PATH_OPTIONS = ("prompt_file", "output_dir", "model.target", "model.draft")
LISTS_OF_PATHS = ("task.runs",)
"""A single path may stand for a list of one."""


def quote_texts(overrides: Sequence[str], sweep: bool) -> list[str]:
    """Quote the value of ``prompt=`` and of path options where Hydra's grammar would not take it as one text.

    The directories of ``hydra.searchpath`` get the source that looks into YAML before it is loaded. Raises UserError
    for a search path of anything but names.

    Left alone are ``null``, an empty value, and one that is quoted as a whole already. In a sweep, whatever Hydra can
    read is left to it, so that ``prompt=a,b`` are two jobs. Of what it cannot read, commas part jobs as well, unless
    they are a sentence's, with a space behind them.
    """
    return [_quote(override, sweep) for override in overrides]


def _quote(override: str, sweep: bool) -> str:
    key, equals, value = override.partition("=")
    bare = key.lstrip("+")
    if bare == SEARCH_PATH:
        return _looked_into(override)
    if not equals or value in ("", "null") or bare not in ("prompt", *PATH_OPTIONS, *LISTS_OF_PATHS):
        return override
    if bare in LISTS_OF_PATHS and value.startswith("["):
        return override
    parsed = _parse(override)
    if sweep:
        readable = parsed is not None
    elif bare == "prompt":
        quoted = value[0] in "'\"" and value[-1] == value[0]
        readable = parsed is not None and quoted and not parsed.is_sweep_override()
    else:
        readable = parsed is not None and not parsed.is_sweep_override()
    if readable:
        return override
    return f"{key}={','.join(map(_quoted, _choices(value)))}" if sweep else f"{key}={as_text(value)}"


CHOICE = re.compile(r"""'(?:[^'\\]|\\.)*'(?=,|$)|"(?:[^"\\]|\\.)*"(?=,|$)|[^,]+""")
"""A value of a sweep; commas in one that has quotes around it are its own."""


def _choices(value: str) -> list[str]:
    found = CHOICE.findall(value)
    whole = ",".join(found) == value and not any(part.startswith(" ") for part in found)
    return found if whole else [value]


def _quoted(part: str) -> str:
    """One value, which may have its quotes already."""
    return part if part[0] in "'\"" and part[-1] == part[0] and _parse(f"x={part}") is not None else as_text(part)


def as_text(value: str) -> str:
    """``value`` as a quoted string of Hydra's grammar that stands for exactly this text, ``${`` included."""
    return QuotedString(literal(value), Quote.single).with_quotes()


def search_path_override(directory: str, option: str) -> str:
    """The override that adds a directory of YAML. Raises UserError, naming ``option``, if it is none to be read."""
    path = expanded(directory, option).absolute()
    if not directory or not path.is_dir():
        raise UserError(f"{option}: {directory or 'an empty name'} is not a directory")
    names_in(path)
    return _searched([f"{UserYaml.scheme()}://{path}"])


def search_path_of(overrides: Sequence[str]) -> list[str]:
    """The directories of YAML that ``overrides`` add. Raises UserError for an override that cannot be read."""
    values = [o.value() for o in parse(overrides) if o.key_or_group == SEARCH_PATH]
    places = [str(place) for value in values for place in (value if isinstance(value, list) else [value])]
    # a package would be imported to look into it
    return [place for place in places if place.startswith(f"{UserYaml.scheme()}://")]


def _looked_into(override: str) -> str:
    """A search path whose directories are read by :class:`UserYaml`. Raises UserError for anything but names."""
    parsed = _parse(override)
    if parsed is None or parsed.key_or_group != SEARCH_PATH or parsed.is_delete() or parsed.is_sweep_override():
        return override
    given = parsed.value()
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise UserError(f"{SEARCH_PATH}: {given!r} is no list of directories; --config-dir names one")
    entries = [str(entry) for entry in given]
    directories = [entry.removeprefix("file://") for entry in entries]
    read = [
        entry if "://" in directory else f"{UserYaml.scheme()}://{expanded(directory, SEARCH_PATH).absolute()}"
        for entry, directory in zip(entries, directories, strict=True)
    ]
    return _searched(read)


def _searched(sources: Sequence[str]) -> str:
    # Hydra takes them as they stand: no ${ is resolved here
    return f"{SEARCH_PATH}=[{','.join(QuotedString(source, Quote.single).with_quotes() for source in sources)}]"


INNER_QUOTES = "\"option='some, text'\""


@functools.lru_cache(maxsize=1024)
def _parse(override: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(override)
    except (HydraException, RecursionError):
        return None


def parse(overrides: Sequence[str]) -> list[Override]:
    """Hydra's reading of all overrides. Raises UserError for one it cannot read."""
    parsed = []
    for override in overrides:
        reading = _parse(override)
        # Hydra reads an option without a name, which it then stumbles over
        if reading is None or not reading.key_or_group:
            text = shortened(override)
            hint = f"values with special characters need quotes inside the shell's: {INNER_QUOTES}"
            if "=" not in override and " " in override.strip():
                hint = f"if it is the prompt, say prompt={shlex.quote(text)}"
            raise UserError(f"'{text}' cannot be read as option=value; {hint}")
        parsed.append(reading)
    return parsed
