"""What a run of the suite leaves: a report that a later run resumes from, a table, an archive, and what comes back.

The report needs no git: it names the sources by a digest of their contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import kit

SCHEMA_VERSION = 2
NAME = "suite.json"
TABLE = "table.txt"
ARCHIVE = "gpu-results.tar.gz"
MOST_FILES = 8
"""So many files come back from a lent machine's $OUT."""
SOURCES = ("spec_sdk", "plugins", "conf", "benchmarks", "tests")


def read(path: Path, device: str) -> dict[str, Any]:
    """The report of an earlier run on this device, or a new one."""
    if path.is_file():
        try:
            report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            report = {}
        if report.get("schema_version") == SCHEMA_VERSION and report.get("device") == device:
            return report
    return {"schema_version": SCHEMA_VERSION, "device": device, "steps": {}}


def write(report: Mapping[str, Any], directory: Path) -> None:
    """Write report, table and archive into ``directory``, whole or not at all."""
    _replace(directory / NAME, json.dumps(report, indent=1) + "\n")
    _replace(directory / TABLE, table(report["steps"]) + "\n")
    unfinished = directory / f"{ARCHIVE}.unfinished"
    with tarfile.open(unfinished, "w:gz") as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.name.startswith(ARCHIVE):
                archive.add(path, path.relative_to(directory))
    unfinished.replace(directory / ARCHIVE)


def _replace(path: Path, content: str) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(path)


def bring_back(directory: Path, names: Iterable[str], out: Path) -> None:
    """Copy the archive, the report, the table and the JSON of ``names``, as many as are let back, into ``out``."""
    wanted = [ARCHIVE, NAME, TABLE, *(f"{name}.json" for name in names)]
    for name in [name for name in wanted if (directory / name).is_file()][:MOST_FILES]:
        if (directory / name).resolve() != (out / name).resolve():
            shutil.copyfile(directory / name, out / name)


def table(steps: Mapping[str, Mapping[str, Any]]) -> str:
    """One line per step: how it ended, its seconds, and the last line it printed."""
    lines = [f"{'step':24}{'status':12}{'seconds':>8}  last line"]
    for name, result in steps.items():
        said = [line for line in result["output"].splitlines() if line.strip()]
        last = result.get("reason") or (said[-1].strip() if said else "")
        lines.append(f"{name:24}{result['status']:12}{result['seconds']:>8.1f}  {last[:120]}")
    return "\n".join(lines)


def digest_of_sources() -> str:
    """Twelve hexadecimal digits that change with any file of code or configuration in the checkout."""
    found = hashlib.sha256()
    for directory in SOURCES:
        for path in sorted((kit.ROOT / directory).rglob("*")):
            if path.suffix in (".py", ".yaml") and path.is_file():
                found.update(os.fsencode(path.relative_to(kit.ROOT)))
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]
