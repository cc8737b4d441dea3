"""README and docs as the tests read them: pages, their blocks of code, and the commands in these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "configuration.md", *(DOCS / "configuration").glob("*.md")}
"""Written by spec_sdk.config.write."""
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])

SHELL = ("", "sh", "bash", "console")
FENCE = re.compile(r"^```([\w{}-]*)\s*$")
MARK = re.compile(r"^\s*<!-- (not run|quoted from): (.+) -->$")
COMMAND = re.compile(r"^(?:\$ )?((?:[A-Z_]+=\S+ )*(?:\S*python|accelerate|torchrun|make|pip|spec-sdk|\.|curl) .*)$")
INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )*python (?:-m )?[^`\s]+[^`\n]*)`")


@dataclass(frozen=True)
class Block:
    """Code of a page: its first line's number, the language of its fence, and what the comment above it says.

    ``mark`` is ``not run`` (with a reason) or ``quoted from`` (with a file), or "".
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    about: str = ""


@dataclass(frozen=True)
class Command:
    """A command line of a page; ``not_run``: why it is checked without being run, "" if it is run."""

    page: Path
    line: int
    text: str
    not_run: str = ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Fenced blocks, and runs of lines that are indented by four or more with an empty line before them."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    mark, about, at = "", "", 0
    while at < len(lines):
        line = lines[at]
        marked = MARK.match(line)
        fence = FENCE.match(line)
        if marked:
            mark, about = marked[1], marked[2]
            at += 1
            continue
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            found.append(Block(page, at + 2, fence[1], "\n".join(lines[at + 1 : end]), mark, about))
            at = end
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            found.append(Block(page, at + 1, "", "\n".join(part.strip() for part in lines[at:end]), mark, about))
            at = end - 1
        if line.strip():
            mark, about = "", ""
        at += 1
    return found


def commands(page: Path) -> Iterator[Command]:
    """What a reader may type: lines of blocks without a language, and inline code that begins with python."""
    for block in blocks(page):
        if block.language not in SHELL:
            continue
        reason = block.about if block.mark == "not run" else ""
        for offset, line in enumerate(re.sub(r"\\\n\s*", "", block.text).splitlines()):
            typed = COMMAND.match(line)
            if typed:
                yield Command(page, block.line + offset, typed[1], reason)
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fenced ^= line.startswith("```")
        for typed in INLINE.finditer(line if not fenced and not line.startswith("    ") else ""):
            yield Command(page, number, typed[1])
