"""YAML out of directories that a user names: looked into before Hydra loads it, so that what is wrong is one line.

Hydra and OmegaConf take a file for what they expect. One that is no text, nested too deeply, or small with aliases that
stand for millions of values would end in a traceback, or not at all.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from spec_sdk.errors import UserError, first_line
from spec_sdk.files import names_in, read_text, shortened
from spec_sdk.settings import PipelineSettings

MOST_VALUES = 100_000
"""In one file, aliases counted as what they stand for."""
MOST_LEVELS = 100


class UserYaml(FileConfigSource):
    """Hydra's source of files, for ``useryaml://DIRECTORY``. Raises UserError, naming the file, for what is no YAML."""

    @staticmethod
    def scheme() -> str:
        return "useryaml"

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names_in(Path(os.path.join(self.path, config_path)))
        return super().list(config_path, results_filter)

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        text = read_text(path, str(path))
        check_yaml(text, path)
        try:
            loaded = super().load_config(config_path)
        except yaml.YAMLError:
            raise
        except (ValueError, AttributeError, TypeError, AssertionError) as error:
            # PyYAML's constructors: !!timestamp of what is no date, a date that there is not, base64 that is none
            raise UserError(f"{path}: cannot be read as options: {first_line(error)}") from error
        # Hydra's own lacks a first line behind a byte order mark
        loaded.header = self._get_header_dict(text)
        content = OmegaConf.to_container(loaded.config, resolve=False)
        check_defaults(content, path)
        if config_path.startswith("pipeline/") and not loaded.header.get("package"):
            check_own_options(content, path)
        # what messages call it
        loaded.path = f"file://{self.path}"
        return loaded


def check_defaults(content: Any, path: Path) -> None:
    """Raise UserError unless the ``defaults`` of a file of options are what Hydra can take."""
    defaults = content.get("defaults", [])
    if not isinstance(defaults, list):
        raise UserError(f"{path}: defaults: is not a list")
    for item in defaults:
        if isinstance(item, str):
            continue
        pairs = list(item.items()) if isinstance(item, dict) else []
        if len(pairs) != 1 or not isinstance(pairs[0][0], str) or not _names_choices(pairs[0][1]):
            raise UserError(f"{path}: defaults: {shortened(repr(item))} is neither a name nor {{group: name}}")


def check_own_options(content: Any, path: Path) -> None:
    """Raise UserError for a pipeline whose options Hydra would take for those of ``pipeline`` itself."""
    defaults = content.get("defaults", [])
    choices = any("override " in str(name) for item in defaults if isinstance(item, dict) for name in item)
    if choices or set(content) - {field.name for field in fields(PipelineSettings)} - {"defaults"}:
        raise UserError(f"{path}: must begin with the line '# @package _global_', as every pipeline's YAML does")


def _names_choices(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, str)
        or (isinstance(value, list) and all(isinstance(name, str) for name in value))
    )


def check_yaml(text: str, path: Path) -> None:
    """Raise UserError for YAML that holds no options, is nested too deeply or stands for too many values.

    YAMLError for what is no YAML.
    """
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        raise UserError(f"{path}: not YAML: {error.reason} at character {error.position}") from error
    loader.name = str(path)
    try:
        node = loader.get_single_node()
        values = _values(node, {}) if node is not None else 0
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply") from None
    finally:
        loader.dispose()
    if node is not None and not isinstance(node, yaml.MappingNode) and not node.tag.endswith(":null"):
        raise UserError(f"{path}: holds {'a list' if isinstance(node, yaml.SequenceNode) else 'a value'}, not options")
    if values > MOST_VALUES:
        raise UserError(f"{path}: stands for more than {MOST_VALUES:,} values")


def _values(node: yaml.Node, known: dict[int, int], level: int = 0) -> int:
    """How many values a node stands for. Raises RecursionError for one in itself, or in too many others."""
    if level > MOST_LEVELS or known.get(id(node)) == 0:
        raise RecursionError
    if id(node) not in known:
        known[id(node)] = 0
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [item for pair in pairs for item in pair]
        known[id(node)] = 1 + sum(_values(item, known, level + 1) for item in items)
    return known[id(node)]
