"""``--output`` of scripts that measure: where they write is looked at before they measure anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spec_sdk.errors import UserError
from spec_sdk.files import expanded, unwritable

OPTION = "--output"
THE_JSON = "the JSON to write"


def add_output(
    parser: argparse.ArgumentParser, default: Path | None = None, required: bool = False, help_text: str = THE_JSON
) -> None:
    """Add ``--output FILE``. Parsing ends the script, with one line and exit status 2, if no such file can be written;
    the default too, unless it is None.
    """
    # a default that is text goes through the type as well
    value = None if default is None else str(default)
    parser.add_argument(OPTION, type=_file, default=value, required=required, help=help_text)


def writable_file(name: str) -> Path:
    """The path of a file that can be written, whose directory need not be there yet. Raises UserError."""
    path = expanded(name, OPTION)
    if path.exists() and not path.is_file():
        raise UserError(f"{OPTION}: {path} is {'a directory' if path.is_dir() else 'no file'}; name a file")
    fault = unwritable(path.parent)
    if fault is not None:
        raise UserError(f"{OPTION}: {fault}")
    return path


def _file(name: str) -> Path:
    try:
        return writable_file(name)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
