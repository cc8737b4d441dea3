"""Mappings inside mappings, as YAML and JSON have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping, or an empty one, with its path: keys with dots between them."""
    for key, value in node.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        else:
            yield here, value


def value_at(node: Mapping[str, Any], path: str) -> Any:
    """The value at a path, as :func:`leaves` has it; None where there is none."""
    value: Any = node
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
