"""Other packages' growths and runners begin with the defaults that they declare.

Our drafters' YAML lists the options of our parts, with their values. A part of another package may have options of the
same names, and those values were not meant for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from spec_sdk.config.own_yaml import own_yaml, plain
from spec_sdk.installed import OWN_CONF, OWN_DISTRIBUTION, entries_of_others
from spec_sdk.registered import any_registered
from spec_sdk.settings import PLUGIN_NODES


def drop_defaults_of_other_parts(
    config: DictConfig, chosen: Mapping[str, str], typed: Collection[str], loader: ConfigLoader
) -> None:
    """Forget the values that our YAML has for options of the chosen parts of other packages.

    ``chosen``: the YAML file of each config group. What was ``typed``, or stands in the pipeline's YAML or in another
    package's, is kept.
    """
    if not any_registered() and not entries_of_others():
        return
    from_pipeline = own_yaml(loader, f"pipeline/{chosen.get('pipeline')}")
    for kind in PLUGIN_NODES:
        node = config.get(kind)
        name = str(node.get("name")) if isinstance(node, DictConfig) else ""
        if not _is_ours(kind, name):
            continue
        values = plain(node)
        options = _options_of_others(kind, values)
        said = {*from_pipeline.get(kind, {}), *(key.removeprefix(f"{kind}.") for key in typed)}
        if not _is_ours(kind, str(chosen.get(kind))):
            said |= {*own_yaml(loader, f"{kind}/{chosen.get(kind)}")}
        ours = own_yaml(loader, f"{kind}/{name}") if options - said else {}
        for option in options - said:
            if option in values and option in ours and values[option] == ours[option]:
                node.pop(option)


def _is_ours(kind: str, name: str) -> bool:
    return (files(OWN_CONF) / kind / f"{name}.yaml").is_file()


def _options_of_others(kind: str, node: Mapping[str, Any]) -> set[str]:
    """The options of those parts of the plugin at ``node`` that are of other packages; not the plugin's own."""
    from spec_sdk.registry import Registry

    registry, name = Registry.discover(), str(node.get("name"))
    if name not in registry.names(kind):
        return set()
    plugin = registry.get(kind, name)
    found: set[str] = set()
    for part, of_kind in plugin.parts.items():
        if node.get(part) not in registry.names(of_kind):
            continue
        offer = registry.offer(of_kind, str(node.get(part)))
        if offer.package != OWN_DISTRIBUTION:
            found |= {field.name for field in dataclasses.fields(offer.plugin.Config)}
    return found - {field.name for field in dataclasses.fields(plugin.Config)}
