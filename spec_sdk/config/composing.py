"""Composing the config, what overrides changed in it, and every failure of that in one line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from spec_sdk.config.checked_plugin import with_checked_plugin
from spec_sdk.config.chosen_backend import AUTO, with_chosen_backend
from spec_sdk.config.chosen_pipeline import settle
from spec_sdk.config.hints import plugins_with
from spec_sdk.config.hydra_loader import CONFIG_NAME, config_loader
from spec_sdk.config.option import any_of
from spec_sdk.config.overrides import SEARCH_PATH, parse, quote_texts, search_path_of
from spec_sdk.config.own_yaml import own_yaml
from spec_sdk.config.unlisted import options_of_plugin, owner_of, with_unlisted_options
from spec_sdk.errors import UserError, did_you_mean, first_line
from spec_sdk.files import shortened
from spec_sdk.options import key_of, paths_to
from spec_sdk.run_output import OUTPUTS
from spec_sdk.settings import NAME, PLUGIN_NODES, Settings, no_group

_SAID_OF_GROUPS = (
    "Config group override must be a string or a list",
    "Config group override deletion value must be a string",
    "Missing ConfigDefault is not supported",
    "_self_@PACKAGE is not supported",
)
EXTRAS = {"hydra/launcher/joblib": "sweep", "hydra/sweeper/optuna": "sweep", "hydra/launcher/ray": "ray"}
"""Plugins of Hydra that an extra of ours installs."""
ANSWERING = "generate"
LABELS = ("task", "pipeline")


def settings_for(overrides: Sequence[str]) -> Settings:
    """The checked settings of a run with ``overrides``, as they are typed. Raises UserError for all that is wrong.

    Touches nothing of Hydra's global state.
    """
    overrides = quote_texts(overrides, sweep=False)
    with explained(overrides):
        config = compose_config(overrides)
    return replace(settings_of(config), overrides=tuple(overrides))


def settings_of(config: DictConfig) -> Settings:
    """The checked settings of a composed config. Raises UserError."""
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(
            f"{key_of(error) or 'config'}: '???' stands for a value that is still missing; give one"
        ) from error
    except OmegaConfBaseException as error:
        raise UserError(f"{key_of(error) or 'config'}: {first_line(error)}") from error
    assert isinstance(resolved, dict)
    values = {str(key): value for key, value in resolved.items()}
    return Settings.from_config(values, default_output_dir(_label(values)))


def _label(values: Mapping[str, Any]) -> str:
    """What a run's directory is named after: its task, or its pipeline where the task is to answer prompts."""
    task, pipeline = (node.get("name") if isinstance(node := values.get(key), Mapping) else None for key in LABELS)
    label = pipeline if task == ANSWERING else task
    return label if isinstance(label, str) and NAME.fullmatch(label) else "run"


def default_output_dir(label: str) -> Path:
    """``outputs/<date>/<time>-<label>`` below the current directory, with a number if that exists already.

    The time is to the millisecond, so that runs started together do not share a directory.
    """
    now = datetime.now()
    time = f"{now.strftime('%H-%M-%S')}.{now.microsecond // 1000:03d}"
    wanted = OUTPUTS / now.strftime("%Y-%m-%d") / f"{time}-{label}"
    free, number = wanted, 2
    while os.path.lexists(free):
        free, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return free


@contextlib.contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """What goes wrong inside while composing the config with ``overrides`` becomes a UserError."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise explain(error, overrides) from error
    except OSError as error:
        if error.filename is None:
            raise
        # Hydra looks for files of the names that are chosen
        name = shortened(os.path.basename(str(error.filename)))
        raise UserError(f"{name}: {error.strerror or error}") from error
    except RecursionError as error:
        raise UserError("the options choose one another in a circle, or are nested too deeply") from error
    except ValueError as error:
        if not is_composition_error(error):
            raise
        raise explain(error, overrides) from error


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config of one run with ``overrides``. Raises what Hydra raises; :func:`explain` makes a UserError of it.

    An option that the chosen plugins have, but not their YAML, may be set like any other.
    """
    overrides = with_checked_plugin(overrides)
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
    check_choices(overrides)
    try:
        config = _compose(_choices(overrides))
    except HydraException:
        return list(overrides)
    return with_unlisted_options(overrides, config)


def _choices(overrides: Sequence[str]) -> list[str]:
    """Those of ``overrides`` that choose a YAML file of a config group, and where YAML is looked for."""
    known_groups = {*groups(), SEARCH_PATH}
    chosen = [o for o in parse(overrides) if o.key_or_group in known_groups and not o.is_sweep_override()]
    return [str(o.input_line) for o in chosen if isinstance(o.value(), str | list)]


def _compose(overrides: Sequence[str]) -> DictConfig:
    check_choices(overrides)
    with config_loader() as loader:
        chosen = with_chosen_backend(overrides)
        config = loader.load_configuration(CONFIG_NAME, chosen, RunMode.RUN, from_shell=False)
    hydra = config.hydra
    directory = directory_option(config, overrides, "hydra.run.dir")
    if directory is not None:
        config.output_dir = directory
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    settle(config, hydra)
    return config


def options_of(group: str, search_path: Sequence[str] = ()) -> list[str]:
    """What a config group offers: the names of its YAML files, ours, third parties' and those of ``search_path``; and
    ``backend=auto``.
    """
    with config_loader(search_path) as loader:
        return sorted({*loader.get_group_options(group), *([AUTO] if group == "backend" else [])})


def directory_option(config: DictConfig, overrides: Sequence[str], option: str) -> str | None:
    """The directory that ``option`` names, Hydra's way of saying ``output_dir``; None if it is not among ``overrides``.

    Raises UserError if both are.
    """
    given = {o.key_or_group for o in parse(overrides)}
    if option not in given:
        return None
    if "output_dir" in given:
        raise UserError(f"{option}: output_dir is given too; give one of the two")
    directory = str(OmegaConf.select(config, option, throw_on_missing=True) or "")
    if not directory.strip():
        raise UserError(f"{option}: {directory!r} must be a directory")
    return directory


def groups(search_path: Sequence[str] = ()) -> list[str]:
    """The config groups (``pipeline``, ``drafter`` …), Hydra's own left out."""
    with config_loader(search_path) as loader:
        names = loader.list_groups("")
    return sorted(set(names) - {"hydra"})


def pipeline_summaries(search_path: Sequence[str] = ()) -> dict[str, str]:
    """Every pipeline's name and what its YAML says of itself."""
    with config_loader(search_path) as loader:
        names = sorted(set(loader.get_group_options("pipeline", ObjectType.CONFIG)))
        return {name: _summary(own_yaml(loader, f"pipeline/{name}")) for name in names}


def _summary(pipeline: Mapping[str, Any]) -> str:
    about = pipeline.get("pipeline")
    return str(about.get("summary") or "") if isinstance(about, Mapping) else ""


def explain(error: Exception, overrides: Sequence[str]) -> UserError:
    """One line for whatever went wrong while composing the config with ``overrides``."""
    try:
        parse(overrides)
    except UserError as unreadable:
        return unreadable
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, name = _missing_choice(str(error.missing_cfg_file))
        if group:
            return UserError(_unknown_choice(group, name, search_path_of(overrides)))
    for path in _overridden_paths(error, overrides):
        message = _unknown_option(path, overrides)
        if message:
            return UserError(message)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return UserError(f"{mark.name} line {mark.line + 1}: not YAML: {error.problem}")
    if "Cannot merge DictConfig with ListConfig" in str(error.__cause__):
        for override in parse(overrides):
            if isinstance(override.value(), list) and str(override.input_line) in str(error):
                return UserError(no_group(override.key_or_group, f"{override.value()!r} is not a group of options"))
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


def check_choices(overrides: Sequence[str]) -> None:
    """Raise UserError where a plugin, pipeline or model is chosen by a list, which Hydra does not expect everywhere, or
    by a path to somewhere else.
    """
    for override in parse(overrides):
        group, value = override.key_or_group, override.value()
        if group not in (*PLUGIN_NODES, "pipeline", "model"):
            continue
        for choice in value.list if isinstance(value, ChoiceSweep) else [value]:
            if isinstance(choice, list):
                raise UserError(f"{group}: {choice} is a list; choose one{did_you_mean('', options_of(group))}")
            name = str(choice)
            if name.startswith("/") or ".." in name.split("/"):
                raise UserError(_no_name(group, name))


def _no_name(group: str, path: str) -> str:
    return f"{group}: '{path}' is a path and no name; --config-dir adds a directory of YAML"


def is_composition_error(error: Exception) -> bool:
    """True for the ValueErrors that Hydra raises for bad input: a group that is set to a number, a map or null, or is
    taken away as one; a defaults list with what it does not take.
    """
    return any(said in str(error) for said in _SAID_OF_GROUPS)


def _missing_choice(file: str) -> tuple[str, str]:
    """Group and name of a config that is not there. A name may have slashes (``pipeline=mine/fast``); of Hydra's own
    choices the group has.
    """
    if "/" not in file:
        return "", file
    group, _, name = file.rpartition("/") if file.startswith("hydra/") else file.partition("/")
    return group, name


def _unknown_choice(group: str, name: str, search_path: Sequence[str]) -> str:
    if any(Path(file).is_file() for file in (name, f"{name}.yaml")):
        return _no_name(group, name)
    extra = EXTRAS.get(f"{group}/{name}")
    if extra is not None:
        return f"{group}: '{name}' is not installed; it comes with pip install 'spec-sdk[{extra}]'"
    known = options_of(group, search_path)
    if group != "pipeline" and name in options_of("pipeline", search_path):
        return f"{group}: '{name}' is a pipeline; write pipeline={name}"
    if group in PLUGIN_NODES:
        from spec_sdk.registry import Registry

        registry = Registry.discover()
        if name in registry.names(group):
            plugin = registry.get(group, name)
            return f"{group}: '{name}' is another name of '{plugin.name}'; write {group}={plugin.name}"
        return f"{group}: {registry.unknown(name, known, group)}"
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
            # a drafter may hold another, which has a name as well
            if parts[0] in PLUGIN_NODES and (i == 1 or (i > 1 and "name" in node)):
                return f"{here}: " + _unknown_plugin_option(parts[:i], part, node, search_path_of(overrides))
            inside = paths_to(part, node)
            if inside:
                return f"{here}: unknown option, did you mean {any_of([repr(path) for path in inside])}?"
            having = plugins_with(part, search_path_of(overrides)) if i == 0 else ""
            if having:
                return f"{here}: unknown option; {having}"
            siblings = [".".join([*parts[:i], str(key)]) for key in node]
            return f"{here}: unknown option{did_you_mean(here, siblings)}"
        node = node[part]
    return None


def _unknown_plugin_option(
    path: Sequence[str], option: str, node: Mapping[Any, Any], search_path: Sequence[str]
) -> str:
    kind, name = path[0], str(node.get("name"))
    owner = owner_of(kind, name, option, ".".join(path))
    if owner is not None:
        return f"an option of {owner}, which is not chosen"
    known = {str(key) for key in node} - {"name"} | options_of_plugin(kind, name)
    hint = did_you_mean(option, known) if known else " (it has no options)"
    having = plugins_with(option, search_path, [kind])
    return f"unknown option of {kind} '{name}'{hint}" + f"; {having}" * bool(having)
