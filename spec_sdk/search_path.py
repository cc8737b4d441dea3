"""Where configs are found: our own ``conf``, YAML packages of third parties, then their plugins that have no YAML."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from spec_sdk.installed import conf_packages
from spec_sdk.plugin_source import PluginSource


class SpecSdkSearchPath(SearchPathPlugin):
    """Appends to Hydra's search path, in this application only, what third parties bring: YAML, and plugins alone."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in conf_packages()[0]:
            search_path.append(package.distribution, f"pkg://{package.module}")
        search_path.append("plugins without YAML", f"{PluginSource.scheme()}://")


def register_search_path() -> None:
    """Tell Hydra of :class:`SpecSdkSearchPath`. Not through ``hydra_plugins``: other Hydra programs are not ours."""
    Plugins.instance().register(PluginSource)
    Plugins.instance().register(SpecSdkSearchPath)
