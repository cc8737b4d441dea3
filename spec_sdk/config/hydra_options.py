"""What a config may say to Hydra itself: data, and the choice of an installed plugin. Never the name of Python code.

Hydra runs what its own part of a config names: classes (``_target_``, at any depth of its launcher, sweeper and
callbacks), factories of ``logging.config`` (``()``, ``class``, ``ext://``), packages on its search path (``pkg://``),
programs that the environment names (``job.env_set``). So

- a command line may choose plugins by their names in :data:`GROUPS`, set options below :data:`PLUGINS`, and the
  single values of :data:`VALUES`;
- a YAML file may set :data:`FROM_FILES`, and no config of Hydra's own groups;
- names that stand for code are refused everywhere, and so is an interpolation that brings one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from spec_sdk.config.overrides import SEARCH_PATH
from spec_sdk.config.user_yaml import UserYaml
from spec_sdk.errors import UserError

GROUPS = ("hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra/hydra_logging")
PLUGINS = ("hydra.launcher", "hydra.sweeper")
DIRECTORIES = ("file://", f"{UserYaml.scheme()}://")
"""How directories on the search path begin, as they are typed and as they are read."""
VALUES = ("hydra.sweep.dir", "hydra.sweep.subdir", "hydra.run.dir", SEARCH_PATH, "hydra.verbose")
FROM_FILES = "hydra.sweeper.params"

SPECIAL = re.compile(r"_.*_")
"""Keys that Hydra's ``instantiate`` reads, ``_target_`` before all."""
NAME_CODE = ("custom_search_space", "runtime_env")
"""Options of Optuna's sweeper and Ray's launcher that name functions and programs."""
CHOOSE = "choose an installed plugin of Hydra by its name: hydra/launcher=… or hydra/sweeper=…"


def is_hydras(override: Override) -> bool:
    """Whether ``override`` is about Hydra's own part of the config, be it as the place that a config is put into."""
    key = re.split(r"[./\[]", str(override.key_or_group))[0]
    return key == "hydra" or "hydra" in re.split(r"[.:/\[\]]", override.package or "")


def check_overrides(overrides: Sequence[Override]) -> None:
    """Raise UserError for one of ``overrides`` that says what it may not to Hydra."""
    ours = [override for override in overrides if is_hydras(override)]
    for override in ours:
        _check_override(override)
    if sum(override.key_or_group == SEARCH_PATH for override in ours) > 1:
        raise UserError(f"{SEARCH_PATH}: given twice (--config-dir is one); list all directories in one")


def check_file(hydra: Any, file: str) -> None:
    """Raise UserError if a YAML file sets more of Hydra's part than it may. ``hydra``: what it sets there."""
    for path, value in _values(_plain(hydra), "hydra"):
        # a map of no keys, or a value that stands in the place of a map, sets what it replaces
        if not path.startswith(f"{FROM_FILES}.") and not (path == FROM_FILES and value in ({}, None)):
            raise UserError(
                f"{path}: {file} sets it; of Hydra's own options YAML may set {FROM_FILES} alone, the rest is for the "
                "command line"
            )
        _check_names(path.removeprefix(f"{FROM_FILES}.").split("."), value, path)


def check_composed(hydra: DictConfig) -> None:
    """Resolve the options of launcher and sweeper in place, and raise UserError if that brings a name of code.

    ``hydra`` is Hydra's part of a composed config; overrides and files are checked before.
    """
    for plugin in ("launcher", "sweeper"):
        if OmegaConf.is_interpolation(hydra, plugin):
            raise UserError(f"hydra.{plugin}: an interpolation has no plugin; {CHOOSE}")
        node = hydra.get(plugin)
        if not isinstance(node, DictConfig):
            continue
        before = set(_special(_plain(node), f"hydra.{plugin}"))
        OmegaConf.resolve(node)
        for path in set(_special(_plain(node), f"hydra.{plugin}")) - before:
            raise UserError(f"{path}: an interpolation brings it, and names of code are not allowed; {CHOOSE}")
    for key in (hydra.get("sweeper") or {}).get("params") or {}:
        if re.match(r"[+~]*hydra\b", str(key)):
            raise UserError(f"{FROM_FILES}.{key}: Hydra's own options cannot be swept")


def _check_override(override: Override) -> None:
    key, value = str(override.key_or_group), override.value()
    if override.package is not None:
        raise UserError(f"{override.get_key_element()}: nothing is moved into Hydra's own options or out of them")
    if override.is_sweep_override():
        raise UserError(f"{key}: Hydra's own options cannot be swept")
    if "/" in key:
        if not any(key == group or key.startswith(f"{group}/") for group in GROUPS):
            raise UserError(f"{key}: not offered; of Hydra's groups there are: {', '.join(GROUPS)}")
        if isinstance(value, list):
            raise UserError(f"{key}: {value} is a list; choose one by its name")
    elif any(key == plugin or key.startswith(f"{plugin}.") for plugin in PLUGINS):
        _check_names(key.split("."), value, key)
    elif key not in VALUES:
        known = [*VALUES, *(f"{plugin}.…" for plugin in PLUGINS)]
        raise UserError(f"{key}: not offered; of Hydra's options there are: {', '.join(sorted(known))}")
    elif key == SEARCH_PATH:
        _check_search_path(value)


def _check_search_path(value: Any) -> None:
    for path in value if isinstance(value, list) else [value]:
        if not isinstance(path, str) or ("://" in path and not path.startswith(DIRECTORIES)):
            raise UserError(f"{SEARCH_PATH}: {path!r} is no directory; packages bring their YAML by an entry point")


def _check_names(keys: Sequence[str], value: Any, path: str) -> None:
    names = [*keys, *(key for nested, _ in _values(value, "") for key in nested.split("."))]
    for name in names:
        if SPECIAL.fullmatch(name):
            raise UserError(f"{path}: '{name}' is not allowed; {CHOOSE}")
        if name in NAME_CODE:
            raise UserError(f"{path}: '{name}' is not allowed: it names code to run")


def _special(node: Any, path: str) -> Iterator[str]:
    for where, _ in _values(node, path):
        if any(SPECIAL.fullmatch(key) or key in NAME_CODE for key in where.split(".")):
            yield where


def _values(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Paths and values of the leaves of plain data; an empty map or list is a leaf."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(node, Mapping):
        items = list(node.items())
    elif isinstance(node, list | tuple):
        items = list(enumerate(node))
    for key, value in items:
        yield from _values(value, f"{path}.{key}" if path else str(key))
    if not items:
        yield path, node


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
