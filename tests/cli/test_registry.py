"""The registry: who is taken in, who is left out and why, and configs."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import installed
from spec_sdk import registry as registry_module
from spec_sdk.contracts import (
    Budget,
    Drafter,
    Guarantee,
    Policy,
    Request,
    SamplingParams,
    Task,
    Verifier,
    option,
)
from spec_sdk.errors import UserError
from spec_sdk.hookspecs import hookimpl
from spec_sdk.registry import Registry, summary_of
from spec_sdk.tree import TokenTree
from spec_sdk_samplers.reference import ReferenceSampler
from tests.cli.conftest import Result


@dataclass
class SteadyConfig:
    """How steady."""

    depth: int = option(2, "how deep to draft", minimum=0, maximum=9, means={0: "not at all"})
    low: float = option(0.0, "the bounds", above=-1, below=math.inf)
    high: float = option(1.0, "the bounds", minimum=0, below=3)
    label: str | None = None
    groups: list[list[int]] = field(default_factory=list)
    widths: list[int] = option([2, 1], "by level", minimum=1)
    mode: str = option("fast", "how", choices={"fast": "", "safe": "slower"})
    chat: Any = option("auto", "whether", choices=(True, False, "auto"))

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UserError(f"policy.low: {self.low} must be at most policy.high, {self.high}")


class Steady(Policy):
    """Always the same.

    More words.
    """

    name = "steady"
    aliases = ("constant",)
    Config = SteadyConfig

    def budget(self, request: Request) -> Budget:
        return Budget(self.config.depth)


@pytest.fixture
def one() -> Registry:
    registry = Registry()
    registry.register(Steady, "mine", "1.2")
    assert registry.problems == []
    return registry


def problems(registry: Registry) -> list[str]:
    return [str(problem) for problem in registry.problems]


def test_names_and_aliases_find_the_class(one: Registry) -> None:
    assert one.get("policy", "steady") is one.get("policy", "constant") is Steady
    assert one.names("policy") == ["constant", "steady"]


def test_the_nearest_name_is_suggested(one: Registry) -> None:
    with pytest.raises(UserError, match=r"^policy: unknown policy 'stedy', did you mean 'steady'\?$"):
        one.get("policy", "stedy")
    with pytest.raises(UserError, match=r"^drafter: unknown drafter 'x'; none is installed"):
        one.get("drafter", "x")


def test_a_node_becomes_a_typed_config(one: Registry) -> None:
    plugin, config = one.configure("policy", {"name": "steady", "depth": "3", "high": 2, "groups": [[1], [2, 3]]})
    assert plugin is Steady
    assert config == SteadyConfig(depth=3, high=2.0, groups=[[1], [2, 3]])
    assert isinstance(config.high, float)


def test_texts_are_taken_literally(one: Registry) -> None:
    assert one.configure("policy", {"name": "steady", "label": "${x} \\${y} ${"})[1].label == "${x} \\${y} ${"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"name": "steady", "dept": 1}, "policy.dept: unknown option of policy 'steady', did you mean 'depth'?"),
        ({"name": "steady", "depth": "x"}, "policy.depth: 'x' is not a whole number"),
        ({"name": "steady", "depth": 1.5}, "policy.depth: 1.5 is not a whole number"),
        ({"name": "steady", "depth": None}, "policy.depth: None is not a whole number"),
        ({"name": "steady", "depth": [1]}, "policy.depth: [1] is not a whole number"),
        ({"name": "steady", "low": True}, "policy.low: True is not a number"),
        ({"name": "steady", "groups": [["a"]]}, "policy.groups: [['a']] is not a list of lists of whole numbers"),
        ({"name": "steady", "groups": 3}, "policy.groups: 3 is not a list of lists of whole numbers"),
        ({"name": "steady", "groups": None}, "policy.groups: None is not a list of lists of whole numbers"),
        ({"name": "steady", "depth": 10}, "policy.depth: 10 must be between 0 (not at all) and 9"),
        ({"name": "steady", "low": -1}, "policy.low: -1.0 must be above -1 and finite"),
        ({"name": "steady", "low": float("inf")}, "policy.low: inf must be above -1 and finite"),
        ({"name": "steady", "high": 3}, "policy.high: 3.0 must be 0 or more and below 3"),
        ({"name": "steady", "high": float("nan")}, "policy.high: nan must be 0 or more and below 3"),
        ({"name": "steady", "widths": [2, 0]}, "policy.widths: 0 must be 1 or more"),
        ({"name": "steady", "mode": "sfe"}, "policy.mode: unknown value 'sfe', did you mean 'safe'?"),
        ({"name": "steady", "chat": 1}, "policy.chat: 1 must be true, false or auto"),
        ({"name": "steady", "chat": "x"}, "policy.chat: 'x' must be true, false or auto"),
        ({"name": "steady", "low": 0.5, "high": 0.1}, "policy.low: 0.5 must be at most policy.high, 0.1"),
        ({"depth": 1}, "policy.name: None is not the name of a policy"),
    ],
)
def test_bad_options_are_refused(one: Registry, node: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        one.configure("policy", node)
    assert str(refused.value).startswith(message)


def described(name: str, kind: str, default: Any, valid: str, doc: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "default": default, "valid": valid, "doc": doc}


def test_a_default_must_be_valid_itself() -> None:
    with pytest.raises(ValueError, match=r"^default: 0 must be 1 or more$"):
        option(0, "how deep", minimum=1)
    with pytest.raises(ValueError, match=r"^default: unknown value 'x', did you mean"):
        option("x", "which", choices=("xy", "z"))


def test_defaults_that_can_change_are_not_shared() -> None:
    assert SteadyConfig().widths is not SteadyConfig().widths


def test_the_listing_is_plain_data(one: Registry) -> None:
    [entry] = json.loads(json.dumps(one.listing()))
    assert entry == {
        "kind": "policy",
        "name": "steady",
        "aliases": ["constant"],
        "package": "mine",
        "version": "1.2",
        "guarantee": None,
        "summary": "Always the same.",
        "options": [
            described("depth", "int", 2, "whole number, between 0 and 9", "how deep to draft; 0: not at all"),
            described("low", "float", 0.0, "number, above -1 and finite", "the bounds"),
            described("high", "float", 1.0, "number, 0 or more and below 3", "the bounds"),
            described("label", "str | None", None, "text or null", ""),
            described("groups", "list[list[int]]", [], "list of lists of whole numbers", ""),
            described("widths", "list[int]", [2, 1], "list of whole numbers, 1 or more", "by level"),
            described("mode", "str", "fast", "fast or safe", "how; safe: slower"),
            described("chat", "Any", "auto", "true, false or auto", "whether"),
        ],
        "parts": {},
    }


def test_a_plugin_without_a_docstring_has_no_summary() -> None:
    """Its contract's would say of every such plugin what an author is to write."""

    class Untold(Policy):
        name = "untold"

        def budget(self, request: Request) -> Budget:
            return Budget(0)

    class OfSteady(Steady):
        name = "of_steady"

    assert Policy.__doc__ and summary_of(Untold) == ""
    assert summary_of(OfSteady) == "Always the same."


def test_a_module_with_a_hook_is_taken_in() -> None:
    registry = Registry()
    module: Any = types.ModuleType("mine")
    module.spec_sdk_plugins = hookimpl(lambda: [Steady])
    module.spec_sdk_plugins.__name__ = "spec_sdk_plugins"
    registry.register(module, "mine")
    assert registry.get("policy", "steady") is Steady


def test_the_first_of_two_packages_keeps_a_name(one: Registry) -> None:
    class Other(Policy):
        name = "other"
        aliases = ("steady",)

        def budget(self, request: Request) -> Budget:
            return Budget(0)

    one.register(Other, "theirs")
    assert one.get("policy", "steady") is Steady
    assert problems(one) == [
        f"theirs: plugin {Other.__qualname__} is ignored: mine has a policy 'steady' too",
    ]
    one.register(Steady, "mine", "1.2")
    assert len(one.problems) == 1


def test_a_plugin_made_of_another_does_not_claim_its_aliases(one: Registry) -> None:
    class Steadier(Steady):
        name = "steadier"

    class Renamed(Steady):
        name = "renamed"
        aliases = ("fixed",)

    one.register(Steadier, "theirs")
    one.register(Renamed, "theirs")
    assert problems(one) == []
    assert one.names("policy") == ["constant", "fixed", "renamed", "steadier", "steady"]
    assert one.get("policy", "constant") is Steady


@dataclass
class Demanding:
    depth: int


def test_what_is_no_plugin_is_left_out() -> None:
    class Abstract(Drafter):
        name = "abstract"

    class Nameless(Steady):
        name = 5  # type: ignore[assignment]

    class Optionless(Steady):
        Config = int  # type: ignore[assignment]

    class Strict(Steady):
        Config = Demanding  # type: ignore[assignment]

    class Kindless(Steady):
        kind = "polcy"

    registry = Registry()
    for plugin in (Abstract, Nameless, Optionless, Strict, Kindless, int):
        registry.register(plugin, "mine")
    assert registry.listing() == []
    reasons = ["it lacks propose_one", "has no name", "not a dataclass", "without a default for depth", "no known kind"]
    for problem, reason in zip(registry.problems, [*reasons, "not a subclass"], strict=True):
        assert reason in problem.message


def test_a_class_that_cannot_be_made_is_left_out() -> None:
    """A drafter is given the models too, which is easily forgotten; the error would come from where it is made."""

    class WithoutModels(Drafter):
        name = "without_models"

        def __init__(self, config: Any) -> None:
            super().__init__(config, None)  # type: ignore[arg-type]

        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            raise AssertionError

    class WantsMore(Steady):
        name = "wants_more"
        aliases = ("more",)

        def __init__(self, config: Any, depth: int) -> None:
            super().__init__(config)

    class TakesAny(Steady):
        name = "takes_any"
        aliases = ("any",)

        def __init__(self, *given: Any, depth: int = 3) -> None:
            super().__init__(*given)

    registry = Registry()
    for plugin in (WithoutModels, WantsMore, TakesAny):
        registry.register(plugin, "mine")
    assert registry.names("policy") == ["any", "takes_any"] and registry.names("drafter") == []
    assert [problem.message.partition(" has ")[2] for problem in registry.problems] == [
        "an __init__ that takes no config and models: too many positional arguments",
        "an __init__ that takes no config: missing a required argument: 'depth'",
    ]
    with pytest.raises(UserError, match="'without_models' of mine could not be loaded: it has an __init__ that takes"):
        registry.get("drafter", "without_models")


def test_a_guarantee_is_a_known_one() -> None:
    class Silent(Verifier):
        name = "silent"

    class Boastful(Verifier):
        name = "boastful"
        guarantee = "lossless"  # type: ignore[assignment]

    class Vague(ReferenceSampler):
        name = "vague"
        guarantee = "nearly"  # type: ignore[assignment]

    class Changing(Verifier):
        """Says itself what it guarantees."""

        name = "changing"

        def guarantee_under(self, params: SamplingParams) -> Guarantee:
            return "relaxed" if params.temperature else "exact"

    registry = Registry()
    for plugin in (Silent, Boastful, Vague, Changing):
        registry.register(plugin, "mine")
    assert registry.names("verifier") == ["changing"] and registry.names("sampler") == []
    silent, boastful, vague = (problem.message for problem in registry.problems)
    assert silent.endswith("Silent has no guarantee, which is one of exact, distribution, relaxed")
    assert boastful.endswith("has the guarantee 'lossless', which is none of exact, distribution, relaxed")
    assert vague.endswith("has the guarantee 'nearly', which is none of exact, distribution, relaxed")


class Entry(EntryPoint):
    """An entry point that loads ``target`` (and raises it if it is an exception)."""

    targets: dict[str, Any] = {}

    def load(self) -> Any:
        target = self.targets[self.value]
        if isinstance(target, BaseException):
            raise target
        return target


def entry(name: str, value: str, target: Any = None) -> Entry:
    Entry.targets[value] = target
    return Entry(name, value, "spec_sdk")


@pytest.fixture
def discover(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """``discover(entries…)``: what the registry makes of these entry points."""

    def run(*entries: Entry) -> Registry:
        monkeypatch.setattr(registry_module, "entries", lambda: list(entries))
        monkeypatch.setattr(installed, "entries", lambda: list(entries))
        return Registry.discover.__wrapped__(Registry)

    return run


def test_a_package_that_fails_to_import_costs_only_itself(discover: Callable[..., Registry]) -> None:
    class Typo:
        @hookimpl
        def spec_sdk_plugin(self) -> None: ...

    registry = discover(
        entry("broken", "broken", ImportError("no module named foo\nmore")),
        entry("exits", "exits", SystemExit(3)),
        entry("typo", "typo", Typo()),
        entry("empty", "empty", types.ModuleType("empty")),
        entry("policies.steady", "mine:Steady", Steady),
    )
    assert registry.names("policy") == ["constant", "steady"]
    found = problems(registry)
    assert found[0] == "unknown package: plugin 'broken' cannot be loaded: ImportError: no module named foo"
    assert "SystemExit" in found[1]
    assert "unknown hook 'spec_sdk_plugin'" in found[2] or "spec_sdk_plugin" in found[2]
    assert "implements no hook" in found[3]
    assert len(found) == 4


def test_yaml_packages_that_are_missing_or_collide_are_told_of(
    discover: Callable[..., Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mine_conf", "theirs_conf"):
        (tmp_path / package / "drafter").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "drafter" / "mine.yaml").write_text("name: mine\n")
    (tmp_path / "theirs_conf" / "drafter" / "easyspec.yaml").write_text("name: easyspec\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = discover(
        entry("conf.mine", "mine_conf"),
        entry("conf.theirs", "theirs_conf"),
        entry("conf.gone", "gone_conf"),
        entry("conf.gone2", "gone.conf"),
    )
    found = sorted(problem.message for problem in registry.problems)
    assert found[0] == "its YAML package 'gone.conf' cannot be imported: No module named 'gone'"
    assert found[1] == "its YAML package 'gone_conf' does not exist"
    assert found[2] == "its drafter/easyspec.yaml is ignored, spec-sdk has one too"
    assert found[3] == "its drafter/mine.yaml is ignored, unknown package has one too"
    assert [package.module for package in installed.conf_packages()[0]] == ["mine_conf", "theirs_conf"]


def test_a_broken_package_is_one_warning_and_stands_in_the_list(
    cli: Callable[..., Result], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spec_sdk.cli import jobs

    jobs._warn_of_problems.cache_clear()
    registry.problems.append(installed.Problem("theirs", "plugin 'x' cannot be loaded: ImportError: y"))
    result = cli("task=plugins", "json=true")
    assert result.status == 0
    assert result.err.splitlines()[1:] == ["warning: theirs: plugin 'x' cannot be loaded: ImportError: y"]
    listed = json.loads(result.out)
    assert listed["broken"] == [{"package": "theirs", "message": "plugin 'x' cannot be loaded: ImportError: y"}]
    assert [(p["kind"], p["name"]) for p in listed["plugins"]] == [("task", "generate"), ("task", "plugins")]


def test_a_broken_package_is_named_behind_the_list_too(cli: Callable[..., Result], registry: Registry) -> None:
    """Warnings stand above pages of plugins."""
    assert "not listed" not in cli("task=plugins").err
    registry.problems += [installed.Problem("theirs", "a"), installed.Problem("theirs", "b")]
    last = cli("task=plugins").err.splitlines()[-1]
    assert last == "not listed, see the warnings above: some or all plugins of theirs"


@pytest.mark.parametrize("columns", [None, "80", "60"])
def test_the_list_names_kind_package_and_options(
    cli: Callable[..., Result], registry: Registry, monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    """In the width of the terminal, and in 80 columns where there is none."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    registry.register(Steady, "mine", "1.2")
    lines = cli("task=plugins").out.splitlines()
    assert lines.index("policy") < lines.index("  steady, constant (mine 1.2)") < lines.index("task")
    options = "depth=2, low=0.0, high=1.0, label=null, groups=[], widths=[2, 1], mode=fast, chat=auto"
    assert options in " ".join(map(str.strip, lines))
    assert max(map(len, lines)) <= int(columns or 80)


def test_a_policy_of_no_nodes() -> None:
    with pytest.raises(UserError, match=r"^policy.max_nodes: 0 must be 1 \(plain decoding\) or more$"):
        Registry.discover().configure("policy", {"name": "fixed", "max_nodes": 0})


def test_first_party_plugins_are_found() -> None:
    registry = Registry.discover()
    names = {kind: set(registry.names(kind)) for kind in ("policy", "predictor", "backend", "task")}
    assert names["policy"] >= {"fixed", "heuristic", "adaptive"}
    assert names["predictor"] >= {"attention_sink", "sink"}
    assert names["backend"] >= {"cpu"}
    assert names["task"] >= {"generate", "plugins"}
    assert issubclass(registry.get("task", "generate"), Task)
