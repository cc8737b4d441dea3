"""A third party's plugin that brings no YAML is chosen, set and refused like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from spec_sdk import plugin_source
from spec_sdk.contracts import Budget, Policy, Request, option
from spec_sdk.registry import Registry
from tests.cli.conftest import Result


@dataclass
class SteadyConfig:
    depth: int = option(3, "tokens drafted per cycle", minimum=1)
    widths: list[int] = option([2, 1], "by level", minimum=1)


class Steady(Policy):
    """Always as deep."""

    name = "steady"
    aliases = ("constant",)
    Config = SteadyConfig

    def budget(self, request: Request) -> Budget:
        return Budget(self.config.depth)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    """Another package is installed, and the registry has found its plugin."""
    registry.register(Steady, "theirs", "1.0")
    monkeypatch.setattr(plugin_source, "entries_of_others", lambda: [EntryPoint("theirs", "theirs", "spec_sdk")])


def test_it_is_a_choice_with_its_declared_defaults(cli: Callable[..., Result], theirs: None) -> None:
    shown = cli("policy=steady", "policy.depth=2", "--cfg", "job", "--package", "policy")
    assert shown == Result(0, "name: steady\ndepth: 2\nwidths:\n- 2\n- 1\n", "")
    assert "steady" in cli("--help").out


def test_options_of_the_pipeline_for_another_plugin_are_forgotten(cli: Callable[..., Result], theirs: None) -> None:
    # prompt_lookup.yaml sets policy.depth, which this policy has too, and no other option
    shown = cli("pipeline=prompt_lookup", "policy=steady", "--cfg", "job", "--package", "policy")
    assert shown.out == "name: steady\ndepth: 8\nwidths:\n- 2\n- 1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy=stedy"], "policy: unknown policy 'stedy', did you mean 'steady'?"),
        (["policy=constant"], "policy: 'constant' is another name of 'steady'; write policy=steady"),
        (["policy=steady", "policy.dept=2"], "policy.dept: unknown option of policy 'steady', did you mean 'depth'?"),
    ],
)
def test_what_is_mistyped_is_one_line(
    cli: Callable[..., Result], theirs: None, arguments: list[str], message: str
) -> None:
    refused = cli(*arguments)
    assert (refused.status, refused.error) == (2, message)


def test_without_other_packages_no_plugin_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Registry:
        raise AssertionError("plugins were loaded")

    monkeypatch.setattr(Registry, "discover", refuse)
    monkeypatch.setattr(
        plugin_source, "entries_of_others", lambda: [EntryPoint("conf.theirs", "theirs.conf", "spec_sdk")]
    )
    source = plugin_source.PluginSource("test", "plugins://")
    assert not source.is_group("policy") and not source.is_config("policy/steady") and source.list("policy", None) == []
