"""Calls of tools that are written as Python has them. Nothing of it is run."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from spec_sdk.serve.reading.call_formats import CallFormat, call_of, calls_of, ends_of, json_of, parsed
from spec_sdk.serve.reading.pieces import Call, Tools

_CONSTANTS = {"true": True, "false": False, "null": None}
"""Of JSON, which models write there too."""


class PythonCalls(CallFormat):
    """``<|tool_call_start|>[name(key="value"), …]<|tool_call_end|>``: LFM2's, which writes JSON where it is told to."""

    opens = ("<|tool_call_start|>",)
    close = "<|tool_call_end|>"
    inner = (close,)

    def end(self, body: str) -> int | None:
        # an argument may have the mark in its text
        for end in ends_of(body, self.close):
            if _read(body[: end - len(self.close)]) is not None or not _is_within_text(body, end):
                return end
        return None

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        text = body.strip().removesuffix(self.close)
        # a name with a hyphen is none of Python's
        others = {f"_function_{i}_": name for i, name in enumerate(tools) if not _is_name(name)}
        for stand_in, name in others.items():
            text = text.replace(f"{name}(", f"{stand_in}(")
        calls = _read(text)
        return calls and [_restored(call, others) for call in calls]

    def written(self, calls: Sequence[Call]) -> str:
        names = [name for call in calls for name in (call.name, *json.loads(call.arguments))]
        write = _python_of if all(map(_is_name, names)) else json_of
        return f"{self.opens[0]}[{', '.join(map(write, calls))}]{self.close}"


def _is_name(name: str) -> bool:
    return all(map(str.isidentifier, name.split(".")))


def _restored(call: Call, others: Mapping[str, str]) -> Call:
    """With the names that stand-ins were for, in arguments too, whose texts may have had them."""
    arguments = call.arguments
    for stand_in, name in others.items():
        arguments = arguments.replace(f"{stand_in}(", f"{name}(")
    return Call(others.get(call.name, call.name), arguments)


def _read(text: str) -> list[Call] | None:
    as_json = parsed(text.strip())
    if as_json is not None:
        return calls_of(as_json)
    try:
        with warnings.catch_warnings():
            # of escapes that Python does not know
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
        found = [_call(node) for node in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        # a TypeError: bytes and sets are literals that JSON has none of, and a list is no key
        return None
    calls = [call for call in found if call is not None]
    return calls if calls and len(calls) == len(found) else None


def _is_within_text(body: str, end: int) -> bool:
    """Whether what ends there may be part of a text that goes on: quotes before it are odd in number."""
    before = body[:end]
    return any(before.count(quote) % 2 for quote in "\"'")


def _call(node: ast.expr) -> Call | None:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        return None
    name = ast.unparse(node.func)
    if not _is_name(name):
        return None
    return call_of(name, {str(keyword.arg): _value(keyword.value) for keyword in node.keywords})


def _value(node: ast.expr) -> Any:
    """The value of a literal, names of JSON among them. Raises ValueError for anything else."""
    for name in ast.walk(node):
        if isinstance(name, ast.Name) and name.id not in _CONSTANTS:
            raise ValueError(f"{name.id} is no literal")
    return ast.literal_eval(_Constants().visit(node))


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)


def _python_of(call: Call) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in json.loads(call.arguments).items())})"
