"""The plugins of a run and those of their options that say something, for result files and tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from spec_sdk.config.option import as_yaml
from spec_sdk.options import describe_options
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    # it brings torch along
    from spec_sdk.registry import Registry

KINDS = ("drafter", "verifier", "sampler", "policy", "predictor", "attention_verifier", "backend")


def plugins_of(settings: Settings, registry: Registry) -> dict[str, dict[str, Any]]:
    """By kind the chosen plugin, as YAML has it: ``name``, and those options that do not have their default or were
    changed beside the pipeline.

    The attention verifier is left out where nothing is predicted. Raises UserError for a name that does not exist.
    """
    nodes: dict[str, Mapping[str, Any]] = {kind: getattr(settings, kind) for kind in KINDS}
    unpredicted = nodes["predictor"].get("name") == "none"
    left_out = ("predictor", "attention_verifier") if unpredicted else ()
    plugins = {
        kind: _described(kind, node, registry, settings.pipeline.overridden)
        for kind, node in nodes.items()
        if kind not in left_out
    }
    # it is the absence of a plugin
    return {**plugins, "predictor": {"name": "none"}} if unpredicted else plugins


def in_words(plugin: Mapping[str, Any]) -> str:
    """A plugin with its options in one line: ``easyspec (width=2)``."""
    values = {key: value if isinstance(value, str) else as_yaml(value) for key, value in plugin.items()}
    options = ", ".join(f"{key}={value}" for key, value in values.items() if key != "name")
    return f"{plugin['name']} ({options})" if options else str(plugin["name"])


def facts_of(settings: Settings, plugins: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The pipeline, which of its keys were given other values, and its plugins, for people to read."""
    return {
        "pipeline": settings.pipeline.in_words,
        **{kind.replace("_", " "): in_words(plugin) for kind, plugin in plugins.items()},
    }


def _described(kind: str, node: Mapping[str, Any], registry: Registry, overridden: Collection[str]) -> dict[str, Any]:
    plugin = registry.get(kind, str(node.get("name")))
    defaults = {option["name"]: option["default"] for option in describe_options(plugin.Config)}
    for option, part_kind in plugin.parts.items():
        part = registry.get(part_kind, str(node.get(option, defaults[option])))
        defaults = {**{o["name"]: o["default"] for o in describe_options(part.Config)}, **defaults}
    # an option of a part that was not chosen is passed over, as it is when the plugin is made
    shown = [key for key in node if key in defaults and (node[key] != defaults[key] or f"{kind}.{key}" in overridden)]
    return {"name": plugin.name, **{key: _for_json(node[key]) for key in shown}}


def _for_json(value: Any) -> Any:
    """An infinity as YAML writes it, ``.inf``: JSON has no number for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return as_yaml(value)
    if isinstance(value, Mapping):
        return {key: _for_json(item) for key, item in value.items()}
    return [_for_json(item) for item in value] if isinstance(value, list | tuple) else value
