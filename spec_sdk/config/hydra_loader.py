"""Hydra's config loader over our YAML, without Hydra's global state and without code out of YAML.

The program around us may be a Hydra program itself. Its ``GlobalHydra``, its version base, its ``ConfigStore`` and its
search path are not ours: we neither see them nor leave anything in them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Iterator, Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from hydra.version import VersionBase, setbase
from omegaconf import DictConfig, OmegaConf

from spec_sdk.config.hydra_options import check_composed, check_file, check_overrides, is_hydras
from spec_sdk.config.overrides import SEARCH_PATH, parse
from spec_sdk.config.user_yaml import UserYaml
from spec_sdk.errors import UserError
from spec_sdk.installed import OWN_CONF, conf_packages
from spec_sdk.plugin_source import PluginSource
from spec_sdk.settings import PIPELINE_NODES, PLUGIN_NODES

CONFIG_NAME = "config"
VERSION_BASE = "1.3"
OWN_SOURCES = ("pkg://hydra.conf", f"pkg://{OWN_CONF}", "structured://")
"""Where configs lie that may speak of Hydra's plugins: Hydra's, ours, and what installed plugins keep in its store."""


MOST_COMPOSED = 64
_composed: dict[tuple[object, ...], DictConfig] = {}
"""Configs of shipped files alone, by the choice of them and the places where they were looked for."""


class ShippedYaml(ImportlibResourcesConfigSource):
    """Hydra's own YAML, or ours: no file of it changes while a process runs, so that each is parsed once."""

    def load_config(self, config_path: str) -> ConfigResult:
        return copy.deepcopy(_parsed(self.provider, self.path, config_path))


@functools.cache
def _parsed(provider: str, package: str, config_path: str) -> ConfigResult:
    return ImportlibResourcesConfigSource(provider, f"pkg://{package}").load_config(config_path)


class _Repository(ConfigRepository):
    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self.sources = [
            ShippedYaml(source.provider, f"pkg://{source.path}") if source.full_path() in OWN_SOURCES[:2] else source
            for source in self.sources
        ]


class CheckedLoader(ConfigLoaderImpl):
    """Composes configs as Hydra does, and refuses what would have Hydra run code that no installed plugin brings.

    Every config that Hydra acts on comes through here: a run's, a sweep's, and in whichever process each of its jobs'.
    All methods raise UserError for what :mod:`spec_sdk.config.hydra_options` does not allow. ``job_overrides``: of the
    job of a sweep that was composed last.
    """

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)
        self._only_shipped = True
        self.job_overrides: list[str] | None = None

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        read = parse(overrides)
        if run_mode == RunMode.RUN and not any(each.is_sweep_override() or is_hydras(each) for each in read):
            config = self._of_one_run(config_name, read)
        else:
            jobs = _of_jobs_plugins(read) if run_mode == RunMode.MULTIRUN else set()
            own = [text for text, each in zip(overrides, read, strict=True) if each.key_or_group not in jobs]
            config = super().load_configuration(config_name, own, run_mode, from_shell, validate_sweep_overrides)
            if jobs:
                config.hydra.overrides.task = [each.input_line for each in read if not is_hydras(each)]
        check_composed(config.hydra)
        return config

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        self.job_overrides = sweep_overrides
        return super().load_sweep_config(master_config, sweep_overrides)

    def _of_one_run(self, config_name: str | None, overrides: Sequence[Override]) -> DictConfig:
        """What Hydra composes where nothing is said to itself. It reads the files that ``overrides`` choose, and then
        sets single values; the first takes nearly all of the time, and is kept where those files are shipped.
        """
        files, values = list[Override](), list[Override]()
        for each in overrides:
            (files if self._chooses_file(each) else values).append(each)
        config = self._of_files(config_name, tuple(str(each.input_line) for each in files))
        self._apply_overrides_to_config(values, config)
        job = config.hydra.job
        config.hydra.overrides.task = [each.input_line for each in overrides]
        config.hydra.runtime.cwd = os.getcwd()
        naming = job.config.override_dirname
        job.override_dirname = get_overrides_dirname(
            list(overrides), naming.exclude_keys, item_sep=naming.item_sep, kv_sep=naming.kv_sep
        )
        return config

    def _chooses_file(self, override: Override) -> bool:
        return not isinstance(override.value(), dict) and self.repository.group_exists(str(override.key_or_group))

    def _of_files(self, config_name: str | None, choices: tuple[str, ...]) -> DictConfig:
        sources = tuple((source.provider, source.full_path()) for source in self.repository.get_sources())
        key = (config_name, choices, sources, JobRuntime.instance().get("name"))
        kept = _composed.get(key)
        if kept is None:
            self._only_shipped = True
            kept = super().load_configuration(config_name, list(choices), RunMode.RUN, from_shell=False)
            if not self._only_shipped:
                return kept
            while len(_composed) >= MOST_COMPOSED:
                _composed.pop(next(iter(_composed)), None)
            _composed[key] = kept
        return copy.deepcopy(kept)

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        # before the search path is looked at: a package on it would be imported
        check_overrides(parse(overrides))
        return super()._parse_overrides_and_create_caching_repo(config_name, overrides)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        path = str(default.config_path)
        # sources join it to their directory, so that it would lead out of ours to anybody's file
        if path.startswith("/") or ".." in path.split("/"):
            raise UserError(f"{path}: a config is named by its path below a directory of YAML, without '..'")
        result = super()._load_single_config(default, repo)
        for source in repo.get_sources() if "/" in path else ():
            # packages come first, then directories in order, and a file that is never read would go unnoticed
            other = isinstance(source, UserYaml) and f"file://{source.path}" != result.path
            if other and source.is_config(path):
                raise UserError(
                    f"{source.path}/{path}.yaml: there is a {path} already, which comes first; give yours another name"
                )
        self._only_shipped &= result.path in OWN_SOURCES
        if result.path not in OWN_SOURCES:
            file = f"{path} of {result.path}"
            if path.startswith("hydra/"):
                raise UserError(f"{file}: Hydra's groups take no YAML but its own plugins'; they are chosen by name")
            if isinstance(result.config, DictConfig) and "hydra" in result.config:
                check_file(result.config._get_node("hydra"), file)
        return result


def _of_jobs_plugins(overrides: Sequence[Override]) -> set[str]:
    """Options of plugins that a sweep's jobs choose, each its own: a sweep's own config has others, without them."""
    swept = {str(each.key_or_group) for each in overrides if each.is_sweep_override()}
    kinds = set(PIPELINE_NODES) if "pipeline" in swept else swept & set(PLUGIN_NODES)
    keys = {str(each.key_or_group) for each in overrides}
    return {key for key in keys if "." in key and key.partition(".")[0] in kinds}


@contextlib.contextmanager
def config_loader(search_path: Sequence[str] = ()) -> Iterator[CheckedLoader]:
    """A loader of our YAML, third parties' and that of ``search_path`` (``hydra.searchpath``). Compose with it inside
    the context.
    """
    # making it loads the defaults that Hydra's own part of a config names
    Plugins.instance().register(PluginSource)
    Plugins.instance().register(UserYaml)
    if not OmegaConf.has_resolver("now"):
        setup_globals()
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    path.append("main", f"pkg://{OWN_CONF}")
    for package in conf_packages()[0]:
        path.append(package.distribution, f"pkg://{package.module}")
    for place in search_path:
        path.append(SEARCH_PATH, place)
    path.append("plugins without YAML", f"{PluginSource.scheme()}://")
    path.append("schema", "structured://")
    with _own_version_base(), _hydras_part_of_the_store():
        yield CheckedLoader(path)


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
