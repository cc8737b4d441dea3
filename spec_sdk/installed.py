"""What installed packages bring: entry points of our group, packages of YAML and of trained drafts.

Reads entry points only; imports no plugin and no torch, so that ``--help`` and mistyped options answer at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.resources import files
from pathlib import Path

GROUP = "spec_sdk"
"""The entry-point group, and pluggy's name of the project."""
CONF_PREFIX = "conf."
"""Entry points whose name begins so are packages of YAML."""
DRAFTS_PREFIX = "drafts."
"""Entry points whose name begins so are packages of trained drafts."""
OWN_CONF = "spec_sdk.conf"
OWN_DISTRIBUTION = "spec-sdk"


@dataclass(frozen=True)
class ConfPackage:
    """A package of YAML: its module path and the distribution that brings it."""

    module: str
    distribution: str


@dataclass(frozen=True)
class Problem:
    """Something of an installed package that does not work. The package is left out, the rest goes on."""

    package: str
    message: str

    def __str__(self) -> str:
        return f"{self.package}: {self.message}"


def distribution(entry_point: EntryPoint) -> tuple[str, str]:
    """Name and version of the package that declares ``entry_point``."""
    return (entry_point.dist.name, entry_point.dist.version) if entry_point.dist else ("unknown package", "")


def entries() -> list[EntryPoint]:
    """All entry points of our group: ours first, then others' by package and name."""
    return [entry for _, declared in _by_package() for entry in declared]


def entries_of_others() -> list[EntryPoint]:
    """:func:`entries` without ours."""
    return [entry for package, declared in _by_package() if package != OWN_DISTRIBUTION for entry in declared]


def _by_package() -> tuple[tuple[str, list[EntryPoint]], ...]:
    return _declared(tuple((place, _changed(place)) for place in sys.path))


def _changed(place: str) -> int | None:
    """When something was last put into a directory or taken out of it, in ns; None of what cannot be read."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=1)
def _declared(places: tuple[tuple[str, int | None], ...]) -> tuple[tuple[str, list[EntryPoint]], ...]:
    """Package and entry points of each that has some in ``places``, which are ``sys.path`` and when it changed.

    Every installed package's metadata is looked through, and a config is composed of them several times.
    """
    # a package's name is parsed out of its metadata at every look
    declared: dict[int, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        declared.setdefault(id(entry.dist), []).append(entry)
    packages = [(distribution(found[0])[0], sorted(found, key=lambda e: e.name)) for found in declared.values()]
    return tuple(sorted(packages, key=lambda package: (package[0] != OWN_DISTRIBUTION, package[0])))


def conf_packages() -> tuple[list[ConfPackage], list[Problem]]:
    """The YAML packages of third parties that can be found, and what is wrong with the others.

    A YAML file of a name that an earlier package has already is a problem: the earlier one is used.
    """
    packages, problems = [], []
    owners = dict.fromkeys(_yaml_names(OWN_CONF), OWN_DISTRIBUTION)
    for entry in entries():
        if not entry.name.startswith(CONF_PREFIX):
            continue
        package = distribution(entry)[0]
        try:
            found = importlib.util.find_spec(entry.value) is not None
            names = list(_yaml_names(entry.value)) if found else []
        except Exception as error:  # importing the parent package runs its code, which may raise anything
            problems.append(Problem(package, f"its YAML package {entry.value!r} cannot be imported: {error}"))
            continue
        if not found:
            problems.append(Problem(package, f"its YAML package {entry.value!r} does not exist"))
            continue
        packages.append(ConfPackage(entry.value, package))
        for name in names:
            if name in owners:
                problems.append(Problem(package, f"its {name} is ignored, {owners[name]} has one too"))
            else:
                owners[name] = package
    return packages, problems


def is_data(entry: EntryPoint) -> bool:
    """Whether it names a package that is read as data, and is no plugin."""
    return entry.name.startswith((CONF_PREFIX, DRAFTS_PREFIX))


def draft_packages() -> list[Path]:
    """The directories of all packages of trained drafts, ours first. One that cannot be found is left out."""
    found = []
    for entry in entries():
        if entry.name.startswith(DRAFTS_PREFIX):
            with contextlib.suppress(Exception):  # importing a package runs its code, which may raise anything
                found.append(Path(str(files(entry.value))))
    return found


def _yaml_names(module: str) -> Iterator[str]:
    for group in files(module).iterdir():
        if group.is_dir():
            yield from (f"{group.name}/{f.name}" for f in group.iterdir() if f.name.endswith(".yaml"))


def heading(group: str, name: str) -> str:
    """The comment on the first line of a YAML file, which says what it is; "" of one without, or of no file."""
    for module in (OWN_CONF, *(package.module for package in conf_packages()[0])):
        file = files(module) / group / f"{name}.yaml"
        if file.is_file():
            first = file.read_text(encoding="utf-8").partition("\n")[0]
            return first.removeprefix("# ") if first.startswith("# ") else ""
    return ""


def installed_version(package: str) -> str | None:
    """The version of an installed distribution; None of one that is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
