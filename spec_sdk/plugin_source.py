"""The config of a third party's plugin that comes without YAML: its options with their defaults, made on the spot.

``drafter=theirs`` finds it as it finds ``conf/drafter/theirs.yaml``, which goes before it.
"""

from __future__ import annotations

import functools

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from spec_sdk.installed import OWN_DISTRIBUTION, entries_of_others, is_data
from spec_sdk.registered import any_registered
from spec_sdk.settings import PLUGIN_NODES


class PluginSource(ConfigSource):
    """A source of Hydra's with a config ``kind/name`` for every plugin of other packages.

    Where there is no such package no plugin is loaded, so that ``--help`` and mistyped options answer at once.
    """

    @staticmethod
    def scheme() -> str:
        return "plugins"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return bool(self._plugins) and config_path in PLUGIN_NODES

    def is_config(self, config_path: str) -> bool:
        return config_path.removesuffix(".yaml") in self._plugins

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if results_filter == ObjectType.GROUP:
            return []
        kind = f"{config_path}/"
        return sorted(path.removeprefix(kind) for path in self._plugins if path.startswith(kind))

    def load_config(self, config_path: str) -> ConfigResult:
        path = config_path.removesuffix(".yaml")
        config = OmegaConf.create({"name": path.rpartition("/")[2], **self._plugins[path]})
        return ConfigResult(self.provider, self.full_path(), config, {"package": None})

    @functools.cached_property
    def _plugins(self) -> dict[str, dict[str, object]]:
        """``kind/name`` → the options' defaults, of the plugins that other packages offer, or this program."""
        if not any_registered() and all(is_data(entry) for entry in entries_of_others()):
            return {}
        from spec_sdk.options import describe_options
        from spec_sdk.registry import Registry

        registry = Registry.discover()
        return {
            f"{kind}/{offer.plugin.name}": {
                option["name"]: option["default"] for option in describe_options(offer.plugin.Config)
            }
            for kind in PLUGIN_NODES
            for offer in registry.offers(kind)
            if offer.package != OWN_DISTRIBUTION
        }
