"""Which files are the parts of one GGUF file: llama.cpp calls them ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.DOTALL)


def whole_name(path: Path) -> str:
    """The file's name without its ending and without what makes it a part.

    >>> whole_name(Path("m-00002-of-00003.gguf")), whole_name(Path("m.gguf"))
    ('m', 'm')
    """
    part = _PART.fullmatch(path.stem)
    return part["name"] if part else path.stem


def parts_of(path: Path) -> list[Path]:
    """All parts that the name of one of them speaks of, the first one first; the file alone if it is no part.

    >>> [part.name for part in parts_of(Path("m-00002-of-00002.gguf"))]
    ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']
    """
    part = _PART.fullmatch(path.stem)
    if part is None:
        return [path]
    count = int(part["count"])
    return [
        path.with_name(f"{part['name']}-{number:05d}-of-{count:05d}{path.suffix}") for number in range(1, count + 1)
    ]


def one_file(paths: Sequence[Path]) -> Path | None:
    """The first part, if ``paths`` are nothing but parts of one file, or the only path; None otherwise."""
    wholes = {tuple(parts_of(path)) for path in paths}
    return next(iter(wholes))[0] if len(wholes) == 1 else None
