"""A package that cannot be loaded is told of with what is wrong and the place in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spec_sdk.registry import Registry

HOOK = "from spec_sdk.hookspecs import hookimpl\n"
CONFIG = "from dataclasses import dataclass\nfrom spec_sdk.contracts import option\n@dataclass\nclass MyConfig:\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            f"{CONFIG}    x: int = option(0, 'x', minimum=1)\n",
            "ValueError: default: 0 must be 1 or more (bad_one/__init__.py, line 5)",
        ),
        (
            f"{CONFIG}    x: list = []\n",
            "ValueError: mutable default <class 'list'> for field x is not allowed: use default_factory "
            "(bad_one/__init__.py, line 3)",
        ),
        ("import bad_one.inner\n", "NameError: name 'foo' is not defined (bad_one/inner.py, line 2)"),
        ("\nx = (\n", "SyntaxError: '(' was never closed (bad_one/__init__.py, line 2)"),
        (
            f"{HOOK}@hookimpl\ndef spec_sdk_plugins(x):\n    return []\n",
            "its hook spec_sdk_plugins asks for 'x', it is given nothing (bad_one/__init__.py, line 2)",
        ),
        (
            f"{HOOK}@hookimpl\ndef spec_sdk_plugin():\n    return []\n",
            "unknown hook 'spec_sdk_plugin', did you mean 'spec_sdk_plugins'? (bad_one/__init__.py, line 2)",
        ),
        (
            f"{HOOK}@hookimpl\ndef spec_sdk_plugins():\n    return int\n",
            "its hook spec_sdk_plugins returned <class 'int'>, and no list of plugin classes "
            "(bad_one/__init__.py, line 2)",
        ),
        (
            f"{HOOK}@hookimpl\ndef spec_sdk_plugins():\n    [int]\n",
            "its hook spec_sdk_plugins returned None, and no list of plugin classes (bad_one/__init__.py, line 2)",
        ),
        ("", "it implements no hook of spec_sdk.hookspecs and is no plugin class"),
    ],
)
def test_what_is_wrong_has_its_place(install: Callable[..., Registry], code: str, reason: str) -> None:
    registry = install("bad_one", code, inner="x = 1\nx = foo\n")
    assert list(map(str, registry.problems)) == [
        f"bad_one: plugin 'bad_one' cannot be loaded: {reason}",
    ]


def test_what_an_import_prints_is_no_output(
    install: Callable[..., Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    install("loud", f"{HOOK}print('hello')\n@hookimpl\ndef spec_sdk_plugins():\n    return []\n")
    told = capsys.readouterr()
    assert told.out == "" and told.err == "hello\n"


def test_a_package_that_only_watches_offers_nothing(install: Callable[..., Registry]) -> None:
    registry = install("watching_package", f"{HOOK}@hookimpl\ndef spec_sdk_event(event):\n    pass\n")
    assert not registry.problems
