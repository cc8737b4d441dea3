"""Which types the fields of a plugin's ``Config`` may have, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.config.composing import settings_for
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from tests.cli.conftest import Result

PACKAGE = """
from __future__ import annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
import torch
from spec_sdk.contracts import Drafter, option
from spec_sdk.hookspecs import hookimpl
from spec_sdk.tree import TokenTree

@dataclass
class TypedConfig:
    FIELD

class Typed(Drafter):
    name = "typed"
    Config = TypedConfig

    def propose_one(self, request, budget):
        return TokenTree.root_only(request.pending_token)

class Plain(Drafter):
    name = "plain"

    def propose_one(self, request, budget):
        return TokenTree.root_only(request.pending_token)

@hookimpl
def spec_sdk_plugins():
    return [Typed, Plain]
"""
NOT_SUPPORTED = "which is not supported; supported are str, int, float, bool, Path, an Enum, Literal['a', 'b'], "

Install = Callable[..., Registry]


@pytest.mark.parametrize(
    ("field", "given", "value", "default"),
    [
        ('x: Literal["a", "b"] = "a"', "b", "b", "a"),
        ('x: Literal["a", "b"] | None = option(None, "which")', "b", "b", None),
        ('x: Path = option(Path("/tmp/x"), "where")', "/tmp/y", Path("/tmp/y"), "/tmp/x"),
        ("x: Path | None = None", "y", Path("y"), None),
        ('x: dict[str, float] = option({}, "bias")', "{a: 2.0}", {"a": 2.0}, {}),
        ('x: dict[str, float] = option({"a": 1.0}, "bias")', "{b: 2}", {"a": 1.0, "b": 2.0}, {"a": 1.0}),
        ("x: tuple[int, int] = (1, 2)", "[3, 4]", (3, 4), [1, 2]),
        ("x: tuple[int, ...] | None = None", "[3]", (3,), None),
        ("x: list[tuple[int, int]] = field(default_factory=list)", "[[3, 4]]", [(3, 4)], []),
    ],
)
def test_an_option_has_the_type_that_it_says(
    install: Install, field: str, given: str, value: Any, default: Any
) -> None:
    registry = install("typed_package", PACKAGE.replace("FIELD", field))
    assert not registry.problems
    plain = settings_for(["drafter=typed"])
    assert json.loads(json.dumps(plain.resolved))["drafter"]["x"] == default
    overridden = registry.configure("drafter", settings_for(["drafter=typed", f"drafter.x={given}"]).drafter)[1].x
    assert overridden == value and type(overridden) is type(value)


def test_a_key_of_a_map_is_set_as_any_option(install: Install, cli: Callable[..., Result]) -> None:
    registry = install("typed_package", PACKAGE.replace("FIELD", 'x: dict[str, float] = option({}, "bias")'))
    settings = settings_for(["drafter=typed", "drafter.x.a=2"])
    assert registry.configure("drafter", settings.drafter)[1].x == {"a": 2.0}
    bias = settings_for(["constraint=tokens", "constraint.bias={17: -2.5}"]).constraint["bias"]
    assert bias == {17: -2.5}
    done = cli("drafter=typed", "drafter.y={a: 2}", "prompt=x")
    assert done.status == 2 and done.error == "drafter.y: unknown option of drafter 'typed'; there are: x"


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ('x: Literal["safe", "fast"] = "safe"', "fsat", "drafter.x: unknown value 'fsat', did you mean 'fast'?"),
        ("x: tuple[int, int] = (1, 2)", [3], "drafter.x: [3] must have 2 values"),
        ("x: tuple[int, int] = (1, 2)", ["a", 1], "drafter.x: ['a', 1] is not a list of whole numbers"),
        ("x: Path | None = None", [3], "drafter.x: [3] is not a path"),
    ],
)
def test_a_value_of_another_type_is_refused(install: Install, field: str, given: Any, message: str) -> None:
    registry = install("typed_package", PACKAGE.replace("FIELD", field))
    with pytest.raises(UserError) as refused:
        registry.configure("drafter", {"name": "typed", "x": given})
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (
            "x: set[int] = field(default_factory=set)",
            f"has a Config with the field 'x' of type set[int], {NOT_SUPPORTED}",
        ),
        ("x: complex = 1j", f"has a Config with the field 'x' of type complex, {NOT_SUPPORTED}"),
        ("x: torch.dtype = torch.float32", f"has a Config with the field 'x' of type dtype, {NOT_SUPPORTED}"),
        ("x: tuple[int, str] = (1, 'a')", f"has a Config with the field 'x' of type tuple[int, str], {NOT_SUPPORTED}"),
        ("x: Literal['a'] | int = 1", "has a Config with the field 'x' of type Union[Literal['a'], int], which is not"),
        ("x: list[Literal['a']] = field(default_factory=list)", "has a Config with the field 'x' of type list[Literal"),
        ("x: bytes = b'1'", "has a Config with the field 'x' of type bytes, which is no plain data; supported are"),
        ("x: int = 'a'", "has a Config with a default that is not valid, x: Value 'a' of type 'str' could not be conv"),
        ("x: int = option('a', 'how')", "has a Config with a default that is not valid, x: Value 'a' of type 'str' c"),
        ("x: Literal['a'] = 'b'", "has a Config with a default that is not valid, x: unknown value 'b'; there are: a"),
        ("x: tuple[int, int] = (1,)", "has a Config with a default that is not valid, x: [1] must have 2 values"),
        ("x: Nowhere = 1", "has a Config whose annotations cannot be read: NameError: name 'Nowhere' is not defined"),
        ("name: str = 'me'", "has a Config with a field 'name', which is reserved: it says which plugin is chosen"),
    ],
)
def test_a_plugin_whose_options_cannot_be_told_of_is_left_out_alone(install: Install, field: str, reason: str) -> None:
    registry = install("typed_package", PACKAGE.replace("FIELD", field))
    [problem] = registry.problems
    assert str(problem).startswith(f"typed_package: plugin Typed {reason}")
    assert "plain" in registry.names("drafter") and "typed" not in registry.names("drafter")


def test_every_command_goes_on_without_it(install: Install, cli: Callable[..., Result]) -> None:
    install("typed_package", PACKAGE.replace("FIELD", "x: complex = 1j"))
    told = ""
    for arguments in (("--help",), ("task=plugins",), ("task=plugins", "drafter=plain")):
        done = cli(*arguments)
        assert done.status == 0, done.err
        told += done.err
    assert told.count("warning: typed_package: plugin Typed has a Config with the field 'x' of type complex") == 1
