"""The command that runs again what a ``config.yaml`` is of."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from spec_sdk.config.composing import settings_for
from spec_sdk.config.nested import leaves
from spec_sdk.config.option import as_yaml
from spec_sdk.config.overrides import as_text, parse, quote_texts
from spec_sdk.errors import UserError

PROGRAM = ("python", "-m", "spec_sdk")
ELSEWHERE = ("output_dir", "pipeline", "sweep")
"""Where it wrote, and of which sweep it was a job, is not what it did; the pipeline stands first."""


def command_of(pipeline: str, config: Mapping[str, Any]) -> str:
    """A line for a shell: the pipeline, and every option with another value than it has there by default.

    A pipeline that is not known here, such as one of a user's own directory of YAML, is told by its options alone.
    """
    chosen = [f"pipeline={pipeline}"]
    try:
        defaults = settings_for(chosen).resolved
    except UserError:
        chosen, defaults = [], settings_for([]).resolved
    options = [_option(path, value) for path, value in _differing(config, defaults)]
    return shlex.join([*PROGRAM, *chosen, *options])


def _differing(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = dict(leaves(defaults))
    for group, node in config.items():
        name = node.get("name") if isinstance(node, Mapping) else None
        if group in ELSEWHERE:
            continue
        if name is not None and name != known.get(f"{group}.name"):
            # another plugin: its options are not those of the pipeline's
            yield group, name
            known.update(_options_of(group, str(name)))
        for path, value in leaves({group: node}):
            if path != f"{group}.name" and (path not in known or known[path] != value):
                yield path, value


def _options_of(group: str, name: str) -> dict[str, Any]:
    try:
        return dict(leaves({group: settings_for([f"{group}={name}"]).resolved[group]}))
    except UserError:
        return {}


def _option(path: str, value: Any) -> str:
    """``path=value`` as the command line reads it again."""
    if not isinstance(value, str):
        return f"{path}={_literal(value)}"
    plain = f"{path}={value}"
    try:
        [read] = parse(quote_texts([plain], sweep=False))
        understood = read.value() == value and not read.is_sweep_override()
    except UserError:
        understood = False
    return plain if understood else f"{path}={as_text(value)}"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{as_text(str(key))}:{_literal(item)}' for key, item in value.items())}}}"
    return f"[{','.join(map(_literal, value))}]" if isinstance(value, list) else as_yaml(value)
