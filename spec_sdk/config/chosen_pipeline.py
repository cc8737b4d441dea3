"""What overrides do to the pipeline that they stand beside: which of its options are stale, and which were changed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from spec_sdk.config.chosen_backend import settle_suited
from spec_sdk.config.hydra_loader import CONFIG_NAME, CheckedLoader, config_loader
from spec_sdk.config.nested import leaves, value_at
from spec_sdk.config.overrides import SEARCH_PATH, parse
from spec_sdk.config.own_yaml import own_yaml, plain
from spec_sdk.config.parts_defaults import drop_defaults_of_other_parts
from spec_sdk.config.unlisted import options_of_plugin
from spec_sdk.errors import UserError
from spec_sdk.installed import conf_packages
from spec_sdk.settings import PIPELINE_NODES, PLUGIN_NODES


def settle(config: DictConfig, hydra: DictConfig) -> None:
    """Drop the pipeline's options that are stale, and note in ``pipeline.overridden`` which of its values were changed.

    Then drop values of our YAML that were not meant for another package's parts, and choose the dtype and the sampler
    that suit the backend, where nobody did.

    ``hydra`` is Hydra's own part of the config.
    """
    OmegaConf.set_struct(config, False)
    # as it stands: a directory's name may hold a ${
    places = OmegaConf.to_container(hydra, resolve=False).get("searchpath")  # type: ignore[union-attr]
    with config_loader(places or ()) as loader:
        _check_names(config, hydra.runtime.choices, _typed(hydra))
        _drop_stale_options(config, hydra, loader)
        if isinstance(config.get("pipeline"), DictConfig):
            config.pipeline.overridden = _overridden(config, hydra, loader, may_change=bool(places))
        drop_defaults_of_other_parts(config, hydra.runtime.choices, _typed(hydra), loader)
        settle_suited(config, _typed(hydra), hydra.runtime.choices.get("pipeline"), loader)


def _check_names(config: DictConfig, choices: Mapping[str, str | None], typed: set[str]) -> None:
    """Raise UserError where the YAML that was chosen for a kind of plugin names one that there is not, by the file's
    own name: a name that was not ``typed`` does not say where it comes from.
    """
    for kind in PLUGIN_NODES:
        if f"{kind}.name" in typed:
            continue
        choice, node = choices.get(kind), config.get(kind)
        if choice is None or not isinstance(node, DictConfig) or OmegaConf.is_interpolation(node, "name"):
            continue
        name = node.get("name")
        if isinstance(name, str) and name != choice:
            # it brings torch along
            from spec_sdk.registry import Registry

            registry = Registry.discover()
            if name not in (known := registry.names(kind)):
                raise UserError(f"{kind}.name, of {kind}={choice}: {registry.unknown(name, known, kind)}")


def task_overrides(hydra: DictConfig) -> list[str]:
    """The overrides as they were given: a ``${`` in one of them is not for us to resolve here."""
    overrides = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return [str(override) for override in overrides]


def all_overrides(hydra: DictConfig) -> list[str]:
    """The overrides as they were given, and those that say where YAML is looked for."""
    own = OmegaConf.to_container(hydra.overrides.hydra, resolve=False)
    assert isinstance(own, list)
    searched = [str(override) for override in own if str(override).lstrip("+").startswith(f"{SEARCH_PATH}=")]
    return task_overrides(hydra) + searched


def _drop_stale_options(config: DictConfig, hydra: DictConfig, loader: ConfigLoader) -> None:
    """Forget the pipeline's options for a plugin that the command line replaced by one without them.

    ``pipeline=easyspec_paper drafter=prompt_lookup`` must not fail over the pipeline's ``drafter.width``. Options that
    the command line itself set are kept, for the registry to judge.
    """
    typed = _typed(hydra)
    replaced = typed & set(PLUGIN_NODES) & set(hydra.runtime.choices)
    if not replaced:
        return
    from_pipeline = own_yaml(loader, f"pipeline/{hydra.runtime.choices.get('pipeline')}")
    for kind in replaced & set(from_pipeline):
        stale = set(from_pipeline[kind]) - set(own_yaml(loader, f"{kind}/{hydra.runtime.choices[kind]}"))
        if stale:
            # its YAML may be made of another's, or not list the options of all its parts
            stale -= options_of_plugin(kind, str(config[kind].get("name")))
        for key in stale:
            if f"{kind}.{key}" not in typed:
                config[kind].pop(key, None)


def _overridden(config: DictConfig, hydra: DictConfig, loader: CheckedLoader, may_change: bool) -> list[str]:
    """Keys of the pipeline's plugins, and others that its YAML sets, that do not have the values they have in it.

    ``may_change``: some of the YAML is a user's, and may be written anew while this process runs.
    """
    name = hydra.runtime.choices.get("pipeline")
    if name is None:
        return []
    set_by_yaml = own_yaml(loader, f"pipeline/{name}")
    typed = {key.partition(".")[0] for key in _typed(hydra) - {"pipeline"}}
    if not typed & {*PIPELINE_NODES, *set_by_yaml}:
        return []
    if may_change:
        alone = _alone(loader, name)
    else:
        installed = tuple((package.module, str(files(package.module))) for package in conf_packages()[0])
        alone = _alone_as_installed(name, installed)
    now, kinds = plain(config), [kind for kind in PIPELINE_NODES if kind in config]
    keys = []
    for kind in kinds:
        before, after = alone.get(kind), now[kind]
        if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
            keys += [kind] * (before != after)
        elif before.get("name") != after.get("name"):
            keys.append(kind)
        else:
            differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            keys += [f"{kind}.{key}" for key in differing]
    others = {key: value for key, value in set_by_yaml.items() if key not in (*kinds, "defaults")}
    paths = [path for path, _ in leaves(others) if path.rpartition(".")[2] != "summary"]
    return keys + [path for path in paths if value_at(alone, path) != value_at(now, path)]


def _alone(loader: CheckedLoader, pipeline: str) -> Mapping[str, Any]:
    """The config of a pipeline to which nothing was added."""
    return plain(loader.load_configuration(CONFIG_NAME, [f"pipeline={pipeline}"], RunMode.RUN, from_shell=False))


@functools.lru_cache(maxsize=64)
def _alone_as_installed(pipeline: str, packages: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    """:func:`_alone` of the YAML of installed ``packages``, their modules and directories, and of no other."""
    with config_loader() as loader:
        return _alone(loader, pipeline)


def _typed(hydra: DictConfig) -> set[str]:
    return {override.key_or_group for override in parse(task_overrides(hydra))}
