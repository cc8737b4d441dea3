"""Composing the config, what overrides changed in it, and every failure of that in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_sdk.config.hydra_loader import config_loader
from spec_sdk.config.overrides import parse, quote_texts
from spec_sdk.config.unlisted import options_of_plugin, owner_of, with_unlisted_options
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.options import first_line, key_of
from spec_sdk.settings import PLUGIN_NODES, Settings

CONFIG_NAME = "config"


def settings_for(overrides: Sequence[str]) -> Settings:
    """The checked settings of a run with ``overrides``, as they are typed. Raises UserError for all that is wrong.

    Touches nothing of Hydra's global state.
    """
    overrides = quote_texts(overrides, sweep=False)
    with explained(overrides):
        config = compose_config(overrides)
    return settings_of(config)


def settings_of(config: DictConfig) -> Settings:
    """The checked settings of a composed config. Raises UserError."""
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{key_of(error) or 'config'}: {first_line(error)}") from error
    assert isinstance(resolved, dict)
    values = {str(key): value for key, value in resolved.items()}
    pipeline = values.get("pipeline")
    name = pipeline.get("name", "run") if isinstance(pipeline, dict) else "run"
    return Settings.from_config(values, default_output_dir(str(name)))


def default_output_dir(label: str) -> Path:
    """``outputs/<date>/<time>-<label>`` below the current directory, with a number if that exists already.

    The time is to the millisecond, so that runs started together do not share a directory.
    """
    now = datetime.now()
    time = f"{now.strftime('%H-%M-%S')}.{now.microsecond // 1000:03d}"
    wanted = Path("outputs") / now.strftime("%Y-%m-%d") / f"{time}-{label}"
    free, number = wanted, 2
    while free.exists():
        free, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return free


@contextlib.contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """What goes wrong inside while composing the config with ``overrides`` becomes a UserError."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise explain(error, overrides) from error
    except ValueError as error:
        if not is_composition_error(error):
            raise
        raise explain(error, overrides) from error


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config of one run with ``overrides``. Raises what Hydra raises; :func:`explain` makes a UserError of it.

    An option that the chosen plugins have, but not their YAML, may be set like any other.
    """
    try:
        return _compose(overrides)
    except HydraException as error:
        reaching = reach_unlisted(overrides) if _is_refused_override(error) else list(overrides)
        if reaching == list(overrides):
            raise
    return _compose(reaching)


def reach_unlisted(overrides: Sequence[str]) -> list[str]:
    """``overrides`` as Hydra must be given them to set options that are in no YAML (:mod:`spec_sdk.config.unlisted`).

    They are returned as they are if the choices among them cannot be composed. Raises UserError for an override that
    cannot be read.
    """
    refuse_lists(overrides)
    try:
        config = _compose(_choices(overrides))
    except HydraException:
        return list(overrides)
    return with_unlisted_options(overrides, config)


def _choices(overrides: Sequence[str]) -> list[str]:
    """Those of ``overrides`` that choose a YAML file of a config group, and where YAML is looked for."""
    known_groups = {*groups(), "hydra.searchpath"}
    chosen = [o for o in parse(overrides) if o.key_or_group in known_groups and not o.is_sweep_override()]
    return [str(o.input_line) for o in chosen if isinstance(o.value(), str | list)]


def _compose(overrides: Sequence[str]) -> DictConfig:
    refuse_lists(overrides)
    with config_loader() as loader:
        config = loader.load_configuration(CONFIG_NAME, list(overrides), RunMode.RUN, from_shell=False)
        hydra = config.hydra
        OmegaConf.set_struct(config, False)
        del config["hydra"]
        drop_stale_options(config, hydra, loader)
    return config


def drop_stale_options(config: DictConfig, hydra: DictConfig, loader: ConfigLoader) -> None:
    """Forget the pipeline's options for a plugin that the command line replaced by one without them.

    ``pipeline=easyspec_paper drafter=prompt_lookup`` must not fail over the pipeline's ``drafter.width``. Options that
    the command line itself set are kept, for the registry to judge. ``hydra`` is Hydra's own part of the config, which
    ``loader`` composed.
    """
    overrides = parse(task_overrides(hydra))
    typed = {o.key_or_group for o in overrides}
    replaced = typed & set(PLUGIN_NODES) & set(hydra.runtime.choices)
    if not replaced:
        return
    from_pipeline = _yaml(loader, f"pipeline/{hydra.runtime.choices.get('pipeline')}")
    OmegaConf.set_struct(config, False)
    for kind in replaced & set(from_pipeline):
        stale = set(from_pipeline[kind]) - set(_yaml(loader, f"{kind}/{hydra.runtime.choices[kind]}"))
        if stale:
            # its YAML may be made of another's, or not list the options of all its parts
            stale -= options_of_plugin(kind, str(config[kind].get("name")))
        for key in stale:
            if f"{kind}.{key}" not in typed:
                config[kind].pop(key, None)


def task_overrides(hydra: DictConfig) -> list[str]:
    """The overrides as they were given: a ``${`` in one of them is not for us to resolve here."""
    overrides = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return [str(override) for override in overrides]


def _yaml(loader: ConfigLoader, path: str) -> Mapping[str, Any]:
    loaded = loader.repository.load_config(path)  # type: ignore[attr-defined]
    if loaded is None or not isinstance(loaded.config, DictConfig):
        return {}
    content = OmegaConf.to_container(loaded.config, resolve=False)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def options_of(group: str) -> list[str]:
    """Names of the YAML files of a config group, ours and third parties'."""
    with config_loader() as loader:
        return loader.get_group_options(group)


def groups() -> list[str]:
    """The config groups (``pipeline``, ``drafter`` …), Hydra's own left out."""
    with config_loader() as loader:
        names = loader.list_groups("")
    return sorted(set(names) - {"hydra"})


def pipeline_summaries() -> dict[str, str]:
    """Every pipeline's name and what its YAML says of itself."""
    with config_loader() as loader:
        names = loader.get_group_options("pipeline", ObjectType.CONFIG)
        return {name: _yaml(loader, f"pipeline/{name}").get("pipeline", {}).get("summary", "") for name in names}


def explain(error: Exception, overrides: Sequence[str]) -> UserError:
    """One line for whatever went wrong while composing the config with ``overrides``."""
    try:
        parse(overrides)
    except UserError as unreadable:
        return unreadable
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if group:
            return UserError(_unknown_choice(group, name))
    for path in _overridden_paths(error, overrides):
        message = _unknown_option(path, overrides)
        if message:
            return UserError(message)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return UserError(f"{mark.name} line {mark.line + 1}: not YAML: {error.problem}")
    if is_composition_error(error):
        for override in parse(overrides):
            group = override.key_or_group
            if group in groups() and not isinstance(override.value(), str | list):
                return UserError(f"{group}: {override.value()!r} is no name{did_you_mean('', options_of(group))}")
    if "Ambiguous value for argument" in str(error):
        sweeps = [str(o.input_line) for o in parse(overrides) if o.is_sweep_override()]
        return UserError(f"{', '.join(sweeps)}: several values; --multirun runs each of them")
    cause = f" ({first_line(error.__cause__)})" if isinstance(error.__cause__, OmegaConfBaseException) else ""
    where = key_of(error) or "config"
    return UserError(f"{where}: {first_line(error).rstrip('.')}{cause}")


def refuse_lists(overrides: Sequence[str]) -> None:
    """Raise UserError for a list where one plugin, pipeline or model is chosen: Hydra does not expect all of them."""
    for override in parse(overrides):
        group, value = override.key_or_group, override.value()
        for choice in value.list if isinstance(value, ChoiceSweep) else [value]:
            if group in (*PLUGIN_NODES, "pipeline", "model") and isinstance(choice, list):
                raise UserError(f"{group}: {choice} is a list; choose one{did_you_mean('', options_of(group))}")


def is_composition_error(error: Exception) -> bool:
    """True for the one ValueError that Hydra raises for bad input: a group that is set to a number, a map or null."""
    return "Config group override must be a string or a list" in str(error)


def _unknown_choice(group: str, name: str) -> str:
    known = options_of(group)
    if group in PLUGIN_NODES:
        from spec_sdk.registry import Registry

        registry = Registry.discover()
        if name in registry.names(group):
            plugin = registry.get(group, name)
            return f"{group}: '{name}' is another name of '{plugin.name}'; write {group}={plugin.name}"
    return f"{group}: unknown {group} '{name}'{did_you_mean(name, known)}"


def _overridden_paths(error: Exception, overrides: Sequence[str]) -> Iterator[str]:
    if _is_refused_override(error):
        paths = (o.key_or_group for o in parse(overrides) if f"'{o.key_or_group}'" in first_line(error))
        yield from (path for path in paths if path and not path.startswith("hydra."))


def _is_refused_override(error: Exception) -> bool:
    return isinstance(error, HydraException) and "Could not override" in str(error)


def _unknown_option(path: str, overrides: Sequence[str]) -> str | None:
    """What to say of ``path`` if it is no option under the chosen groups; None if it is one."""
    try:
        node: Any = _compose(_choices(overrides))
    except HydraException:
        return None
    parts = path.split(".")
    for i, part in enumerate(parts):
        here = ".".join(parts[: i + 1])
        if not isinstance(node, DictConfig):
            return f"{here}: unknown option; {'.'.join(parts[:i])} is a value and has none"
        if part not in node:
            if i == 1 and parts[0] in PLUGIN_NODES:
                return f"{here}: " + _unknown_plugin_option(parts[0], str(node.get("name")), part, node)
            inside = [f"{group!s}.{part}" for group, own in node.items() if isinstance(own, DictConfig) and part in own]
            if inside:
                return f"{here}: unknown option, did you mean {' or '.join(map(repr, inside))}?"
            siblings = [".".join([*parts[:i], str(key)]) for key in node]
            return f"{here}: unknown option{did_you_mean(here, siblings)}"
        node = node[part]
    return None


def _unknown_plugin_option(kind: str, name: str, option: str, node: Mapping[Any, Any]) -> str:
    owner = owner_of(kind, name, option)
    if owner is not None:
        return f"an option of {owner}, which is not chosen"
    known = {str(key) for key in node} - {"name"} | options_of_plugin(kind, name)
    hint = did_you_mean(option, known) if known else " (it has no options)"
    return f"unknown option of {kind} '{name}'{hint}"
