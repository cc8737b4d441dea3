"""Options that a plugin has and its YAML has not, such as those of a third party's growth or runner.

Hydra refuses ``drafter.floor=0.4`` where the drafter's YAML has no ``floor``, since it cannot know of the growth that
has one. And it refuses a new key of an option that is a map: ``constraint.bias={17: -2.5}`` where ``bias`` is ``{}``.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from spec_sdk.config.nested import value_at
from spec_sdk.config.overrides import parse
from spec_sdk.option_types import hints_of, members
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
    # a drafter may hold another: drafter.model.width
    node = value_at(config, ".".join(path))
    if not isinstance(node, Mapping):
        return False
    if option in node:
        return isinstance(override.value(), dict) and _is_map(path[0], node, option)
    if "name" not in node and len(path) > 1:
        return _is_map(path[0], value_at(config, ".".join(path[:-1])), path[-1])
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


def _is_map(kind: str, node: Mapping[str, Any], option: str) -> bool:
    """Whether ``option`` of the plugin at ``node``, or of a part of it, has keys of its user's own."""
    from spec_sdk.registry import Registry

    value, name, registry = node[option], str(node.get("name")), Registry.discover()
    # one with a name is another plugin and its options
    if not isinstance(value, Mapping) or "name" in value or name not in registry.names(kind):
        return False
    plugin = registry.get(kind, name)
    hints = [hints_of(plugin.Config).get(option)]
    hints += [hints_of(o.plugin.Config).get(option) for of in plugin.parts.values() for o in registry.offers(of)]
    return any((typing.get_origin(member) or member) is dict for hint in hints for member in members(hint))


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
