"""``task=check plugin=NAME`` chooses the plugin as a run does, so that its options can be set as for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_sdk.config.overrides import parse
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.settings import PLUGIN_NODES

if TYPE_CHECKING:
    from spec_sdk.registry import Registry


def with_checked_plugin(overrides: Sequence[str]) -> list[str]:
    """``overrides``, with the choice of the plugin that ``task=check plugin=…`` names, unless one is made.

    Raises UserError for a plugin that is not known.
    """
    read = [override for override in parse(overrides) if not override.is_sweep_override()]
    values = {str(override.key_or_group): override.value() for override in read}
    named = values.get("plugin")
    if values.get("task") != "check" or not isinstance(named, str):
        return list(overrides)
    from spec_sdk.registry import Registry

    registry = Registry.discover()
    kind, name = find_plugin(named, registry)
    if kind == "task":
        return list(overrides)
    if kind in PLUGIN_NODES:
        return [*overrides, *([] if kind in values else [f"{kind}={name}"])]
    # a part: chosen as that of a drafter that has such parts
    drafter = next((o.plugin for o in registry.offers("drafter") if kind in o.plugin.parts.values()), None)
    if drafter is None:
        raise UserError(f"plugin: {kind} '{name}' is a part of drafters, and no drafter with such a part is installed")
    chosen = values.get("drafter")
    if isinstance(chosen, str) and chosen in registry.names("drafter"):
        drafter = registry.get("drafter", chosen)
    option = next((option for option, of_kind in drafter.parts.items() if of_kind == kind), None)
    if option is None:
        raise UserError(f"plugin: {kind} '{name}' is a part of drafters, and drafter '{drafter.name}' has none")
    added = [] if "drafter" in values else [f"drafter={drafter.name}"]
    return [*overrides, *added, *([] if f"drafter.{option}" in values else [f"drafter.{option}={name}"])]


def find_plugin(named: str, registry: Registry) -> tuple[str, str]:
    """Kind and name of the plugin ``NAME`` or ``KIND/NAME``; an alias becomes the name.

    Raises UserError with the nearest name, and for a name that several kinds have.
    """
    from spec_sdk.contracts import PLUGIN_KINDS

    given, _, name = named.rpartition("/")
    if given and given not in PLUGIN_KINDS:
        raise UserError(f"plugin: unknown kind '{given}'{did_you_mean(given, PLUGIN_KINDS)}")
    kinds = [given] if given else list(PLUGIN_KINDS)
    having = [kind for kind in kinds if name in registry.names(kind)]
    if not having:
        known = [known for kind in kinds for known in registry.names(kind)]
        raise UserError(f"plugin: {registry.unknown(name, known, *kinds)}")
    if len(having) > 1:
        both = " or ".join(f"plugin={kind}/{name}" for kind in having)
        raise UserError(f"plugin: '{name}' is the name of several plugins; say {both}")
    return having[0], registry.get(having[0], name).name
