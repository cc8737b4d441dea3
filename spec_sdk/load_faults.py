"""Why a package's plugins cannot be loaded, in one line with its place in the package."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pluggy

from spec_sdk.errors import OneLineError, PluginFault, did_you_mean, first_line


def load_fault(error: BaseException, module: str) -> str:
    """What was raised while ``module`` was loaded, and the last of its package's lines that led there."""
    package = module.partition(":")[0].partition(".")[0]
    said = str(error) if isinstance(error, OneLineError) else f"{type(error).__name__}: {first_line(error)}"
    frames: list[tuple[str, int | None]] = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    if isinstance(error, SyntaxError) and error.filename:
        said, frames = f"SyntaxError: {error.msg}", [(error.filename, error.lineno)]
    return f"{said} {_place(*frames[-1], package)}" if frames else said


def check_hooks(manager: pluggy.PluginManager, source: Any) -> None:
    """Raise PluginFault for a hook of ``source`` that nobody calls, or that asks for what it is not given."""
    for name in dir(source):
        options = manager.parse_hookimpl_opts(source, name)
        if options is None or options.get("optionalhook"):
            continue
        function, hook = getattr(source, name), options.get("specname") or name
        caller = getattr(manager.hook, hook, None)
        if caller is None or not caller.has_spec():
            raise PluginFault(f"unknown hook '{hook}'{did_you_mean(hook, vars(manager.hook))}{_at(function)}")
        for argument in inspect.signature(function).parameters.values():
            if argument.default is argument.empty and argument.name not in caller.spec.argnames:
                given = ", ".join(caller.spec.argnames) or "nothing"
                raise PluginFault(f"its hook {hook} asks for {argument.name!r}, it is given {given}{_at(function)}")


def plugins_of(offered: object, source: Any) -> list[Any]:
    """What the hook ``spec_sdk_plugins`` returned, as a list. Raises PluginFault for what is none."""
    if isinstance(offered, str) or not isinstance(offered, Iterable):
        # a function of another name may say that it is this hook
        where = _at(getattr(source, "spec_sdk_plugins", None))
        raise PluginFault(f"its hook spec_sdk_plugins returned {offered!r}, and no list of plugin classes{where}")
    return list(offered)


def _at(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else f" {_place(code.co_filename, code.co_firstlineno, function.__module__)}"


def _place(file: str, line: int | None, module: str) -> str:
    """``(mine/drafter.py, line 3)``: the file from its package on."""
    parts, package = Path(file).parts, module.partition(".")[0]
    begin = max((i for i, part in enumerate(parts) if part == package), default=len(parts) - 1)
    return f"({'/'.join(parts[begin:])}, line {line})"
