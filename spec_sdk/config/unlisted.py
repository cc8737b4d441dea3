"""Options that a plugin has and its YAML has not, such as those of a third party's growth or runner.

Hydra refuses ``drafter.floor=0.4`` where the drafter's YAML has no ``floor``, since it cannot know of the growth that
has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from spec_sdk.config.overrides import parse
from spec_sdk.settings import PLUGIN_NODES


def with_unlisted_options(overrides: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """``overrides``, with a ``+`` before those that set an option which only the chosen plugins' classes have.

    ``config`` is composed of the choices of plugins alone. Raises UserError for an override that cannot be read.
    """
    read = parse(overrides)
    return [f"+{text}" if _is_unlisted(o, read, config) else text for text, o in zip(overrides, read, strict=True)]


def options_of_plugin(kind: str, name: str) -> set[str]:
    """The options of the plugin ``name`` and of every plugin that could be a part of it; none of an unknown plugin."""
    owned, parts = _options(kind, name)
    return owned.union(*(options for of_kind in parts.values() for options in of_kind.values()))


def owner_of(kind: str, name: str, option: str, path: str) -> str | None:
    """What to write to choose a part that has ``option``, of the plugin at ``path``: ``drafter.growth=beam``; None if
    no part has it.
    """
    _, parts = _options(kind, name)
    owners = [f"{path}.{part}={n}" for part, of_kind in parts.items() for n in of_kind if option in of_kind[n]]
    return owners[0] if owners else None


def _is_unlisted(override: Override, others: Sequence[Override], config: Mapping[str, Any]) -> bool:
    *path, option = str(override.key_or_group).split(".")
    if not path or path[0] not in PLUGIN_NODES or override.is_add() or override.is_force_add() or override.is_delete():
        return False
    node: Any = config
    # a drafter may hold another: drafter.model.width
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or option in node:
        return False
    owned, parts = _options(path[0], str(node.get("name")))
    typed = {str(o.key_or_group): o for o in others}
    for part, of_kind in parts.items():
        chosen = typed.get(".".join([*path, part]))
        if chosen is not None and chosen.is_sweep_override():
            owned.update(*of_kind.values())
        else:
            default = _default(path[0], str(node.get("name")), part)
            name = str(node.get(part, default) if chosen is None else chosen.value())
            owned |= of_kind.get(name, set())
    return option in owned


def _default(kind: str, name: str, part: str) -> Any:
    """The part that a plugin has where its YAML names none."""
    from spec_sdk.registry import Registry

    return next(f.default for f in dataclasses.fields(Registry.discover().get(kind, name).Config) if f.name == part)


def _options(kind: str, name: str) -> tuple[set[str], dict[str, dict[str, set[str]]]]:
    """A plugin's own options, and by option that chooses a part: by the part's name, that one's options."""
    from spec_sdk.registry import Registry

    registry = Registry.discover()
    if name not in registry.names(kind):
        return set(), {}

    def fields(of_kind: str, plugin: str) -> set[str]:
        return {field.name for field in dataclasses.fields(registry.get(of_kind, plugin).Config)}

    parts = registry.get(kind, name).parts
    return fields(kind, name), {
        option: {plugin: fields(of_kind, plugin) for plugin in registry.names(of_kind)}
        for option, of_kind in parts.items()
    }
