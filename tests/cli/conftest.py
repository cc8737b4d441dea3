"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import standard_input
from spec_sdk.app import main
from spec_sdk.cli import jobs
from spec_sdk.contracts import PLUGIN_KINDS
from spec_sdk.registry import Registry
from spec_sdk.tasks.generate import Generate
from spec_sdk.tasks.plugins import ListPlugins
from tests.cli import fakes
from tests.support.throw_away_package import write_package

INSTALLED = Registry.discover


@dataclass(frozen=True)
class Result:
    """What a command line did: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one ``error:`` line; fails if there is none, or more than one, or a traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test runs in an empty directory, with nothing on standard input."""
    monkeypatch.chdir(tmp_path)
    with open("/dev/null") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        standard_input.whole_text.cache_clear()
        standard_input.piped_text.cache_clear()
        yield tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``cli("pipeline=vanilla", …)`` in this process."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry with the two tasks alone, in the place of what is installed."""
    registry = Registry()
    registry.register(Generate, "spec-sdk", "0")
    registry.register(ListPlugins, "spec-sdk", "0")
    monkeypatch.setattr(Registry, "discover", lambda: registry)
    return registry


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> Callable[..., None]:
    """``fake(**options)`` replaces the pipeline by a :class:`fakes.FakePipeline`; its plugins are those installed."""
    for kind in set(PLUGIN_KINDS) - {"task"}:
        for offer in INSTALLED().offers(kind):
            registry.register(offer.plugin, offer.package, offer.version)

    def install(**options: Any) -> None:
        fakes.install(monkeypatch.setitem, **options)

    install()
    return install


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Registry]]:
    """``install(name, code, …)``: what the registry makes of what is installed and this package."""
    site, names = tmp_path / "site", list[str]()

    def run(name: str, code: str, **others: str) -> Registry:
        write_package(site, name, code, **others)
        names.append(name)
        monkeypatch.syspath_prepend(str(site))
        registry = INSTALLED.__wrapped__(Registry)
        monkeypatch.setattr(Registry, "discover", lambda: registry)
        jobs._warn_of_problems.cache_clear()
        return registry

    yield run
    jobs._warn_of_problems.cache_clear()
    for module in [loaded for loaded in sys.modules if loaded.partition(".")[0] in names]:
        del sys.modules[module]
