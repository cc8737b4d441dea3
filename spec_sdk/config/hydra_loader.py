"""Hydra's config loader over our YAML, without Hydra's global state.

The program around us may be a Hydra program itself. Its ``GlobalHydra``, its version base, its ``ConfigStore`` and its
search path are not ours: we neither see them nor leave anything in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.version import VersionBase, setbase
from omegaconf import OmegaConf

from spec_sdk.installed import OWN_CONF, conf_packages
from spec_sdk.plugin_source import PluginSource

VERSION_BASE = "1.3"


@contextlib.contextmanager
def config_loader() -> Iterator[ConfigLoaderImpl]:
    """A loader of our YAML and third parties'. Compose with it inside the context."""
    # making it loads the defaults that Hydra's own part of a config names
    Plugins.instance().register(PluginSource)
    if not OmegaConf.has_resolver("now"):
        setup_globals()
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    path.append("main", f"pkg://{OWN_CONF}")
    for package in conf_packages()[0]:
        path.append(package.distribution, f"pkg://{package.module}")
    path.append("plugins without YAML", f"{PluginSource.scheme()}://")
    path.append("schema", "structured://")
    with _own_version_base(), _hydras_part_of_the_store():
        yield ConfigLoaderImpl(path)


@contextlib.contextmanager
def _own_version_base() -> Iterator[None]:
    base = VersionBase.instance()
    before = base.version_base
    setbase(VERSION_BASE)
    try:
        yield
    finally:
        base.version_base = before


@contextlib.contextmanager
def _hydras_part_of_the_store() -> Iterator[None]:
    """Hydra would check our config against whatever the program stores under the same name."""
    store = ConfigStore.instance()
    before = store.repo
    store.repo = {name: node for name, node in before.items() if name == "hydra" or name.startswith("_")}
    try:
        yield
    finally:
        store.repo = before
