"""What one YAML file says, without those it builds on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf


def own_yaml(loader: ConfigLoader, path: str) -> Mapping[str, Any]:
    """What stands in the YAML file of a config group, as in ``pipeline/suffix``; nothing of one that is not there."""
    loaded = loader.repository.load_config(path)  # type: ignore[attr-defined]
    return {} if loaded is None or not isinstance(loaded.config, DictConfig) else plain(loaded.config)


def plain(config: DictConfig) -> dict[str, Any]:
    """The values of ``config``, interpolations as they stand."""
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}
