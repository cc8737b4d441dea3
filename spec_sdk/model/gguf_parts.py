"""Which files are the parts of one GGUF file: llama.cpp calls them ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_PART = re.compile(r"(?P<name>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})", re.DOTALL)


def whole_name(path: Path) -> str:
    """The file's name without its ending and without what makes it a part.

    >>> whole_name(Path("m-00002-of-00003.gguf")), whole_name(Path("m.gguf"))
    ('m', 'm')
    """
    part = _match(path)
    return part["name"] if part else path.stem


def parts_of(path: Path) -> list[Path]:
    """All parts that the name of one of them speaks of, the first one first; the file alone if its name is no part's.

    >>> [part.name for part in parts_of(Path("m-00002-of-00002.gguf"))]
    ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']
    """
    part = _match(path)
    if part is None:
        return [path]
    count = int(part["count"])
    return [
        path.with_name(f"{part['name']}-{number:05d}-of-{count:05d}{path.suffix}") for number in range(1, count + 1)
    ]


def first_parts(paths: Iterable[Path]) -> list[Path]:
    """Of each file that ``paths`` are parts of, or are whole, the first part."""
    return sorted({parts_of(path)[0] for path in paths})


def _match(path: Path) -> re.Match[str] | None:
    part = _PART.fullmatch(path.stem)
    return part if part and 1 <= int(part["number"]) <= int(part["count"]) else None
