"""What config.json's ``quantization_config`` says of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def quantization_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``quantization_config`` of a config.json; empty where there is none, or none that is an object."""
    found = values.get("quantization_config")
    return found if isinstance(found, Mapping) else {}


def weights_of_groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What compressed-tensors says of the weights of each group of layers."""
    groups = quantization.get("config_groups")
    if not isinstance(groups, Mapping):
        return []
    found = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
    return [said for said in found if isinstance(said, Mapping)]
