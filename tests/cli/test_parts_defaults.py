"""A part of another package begins with its own defaults, not with those of our parts whose options have its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spec_sdk.config import parts_defaults
from spec_sdk.config.composing import settings_for
from spec_sdk.contracts import DraftLogits, Growing, Growth, Request, option
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.tree import TreeBuilder


@dataclass
class TheirsConfig:
    width: int = option(7, "paths", minimum=1)
    skip: float = option(0.25, "a part of the draws", minimum=0, maximum=1)


class Theirs(Growth):
    """Options of two names that our parts have too, one of another type."""

    name = "theirs"
    Config: ClassVar[type] = TheirsConfig
    branches = True

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        yield from ()
        return fed.build().tree


@dataclass
class RunnerConfig:
    runner: str = option("mine", "an option that no command line could reach: it is the drafter's")


class TakesADraftersName(Theirs):
    name = "takes_a_drafters_name"
    Config = RunnerConfig


@dataclass
class GroupsConfig:
    groups: int = option(2, "an option that the runner layer_parallel has too")


class TakesARunnersName(Theirs):
    name = "takes_a_runners_name"
    Config = GroupsConfig


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry = Registry()
    for kind in ("drafter", "growth", "runner", "sampler", "backend", "verifier", "policy"):
        for offer in Registry.discover().offers(kind):
            registry.register(offer.plugin, offer.package, offer.version)
    registry.register(Theirs, "their-package", "1.0")
    registry.register(TakesADraftersName, "their-package", "1.0")
    registry.register(TakesARunnersName, "their-package", "1.0")
    monkeypatch.setattr(Registry, "discover", classmethod(lambda cls: registry))
    monkeypatch.setattr(parts_defaults, "entries_of_others", lambda: ["one"])
    yield


def grown_by(*overrides: str) -> Any:
    settings = settings_for(["pipeline=sd_chain", *overrides])
    return Registry.discover().configure("drafter", settings.drafter)[1].growth.config


def test_its_defaults_are_its_own() -> None:
    assert grown_by("drafter.growth=theirs") == TheirsConfig(7, 0.25)
    assert grown_by("drafter.growth=beam").width == 1


def test_what_is_said_is_kept() -> None:
    assert grown_by("drafter.growth=theirs", "drafter.width=1") == TheirsConfig(1, 0.25)
    assert grown_by("drafter.growth=theirs", "drafter.skip=0.5") == TheirsConfig(7, 0.5)
    # this pipeline's own YAML sets the width
    assert grown_by("pipeline=easyspec_paper", "drafter.growth=theirs").width == 4


def test_what_another_yaml_says_is_kept(tmp_path: Path) -> None:
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "mine.yaml").write_text("defaults:\n  - draft_model\ngrowth: theirs\nwidth: 1\n")
    assert grown_by("drafter=mine", f"hydra.searchpath=[{tmp_path}]") == TheirsConfig(1, 0.25)


def test_the_pipeline_says_that_the_part_was_changed_and_no_more() -> None:
    assert settings_for(["pipeline=sd_chain", "drafter.growth=theirs"]).pipeline.overridden == ["drafter.growth"]


def test_one_name_for_two_options_is_refused() -> None:
    """The value would go to one of them, or to both, and nothing would tell."""
    with pytest.raises(UserError) as refused:
        grown_by("drafter.growth=takes_a_drafters_name", "drafter.runner=sequential")
    assert str(refused.value) == (
        "drafter.growth: growth 'takes_a_drafters_name' does not go with drafter 'draft_model': both have an option "
        "'runner', which one of them must call otherwise"
    )
    with pytest.raises(UserError, match="^drafter.runner: runner 'layer_parallel' does not go with growth 'takes_a_ru"):
        grown_by("drafter.growth=takes_a_runners_name", "drafter.runner=layer_parallel")
    assert grown_by("drafter.growth=takes_a_runners_name").groups == 2
