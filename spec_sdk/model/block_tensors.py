"""The tensors of a decoder block apart from everything else in it: one computation for the blocks of a form.

Two blocks of one form differ in the values of their tensors alone, so a graph that takes the tensors as arguments
serves both.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from spec_sdk.ops.linear import Projection, ProjectionStack

Part = TypeVar("Part")
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def tensors_of(part: Any) -> list[torch.Tensor]:
    """Every tensor of a block, or of a part of one, in a fixed order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _mapped(part, note)
    return found


def with_tensors(part: Part, tensors: Iterable[torch.Tensor]) -> Part:
    """The same part over other tensors, in the order of :func:`tensors_of`."""
    following = iter(tensors)
    made: Part = _mapped(part, lambda tensor: next(following))
    return made


def form_of(part: Any) -> str:
    """All that a part is besides the values in its tensors: types, options, and each tensor's shape, dtype, layout.

    It is the same before and after a pass, though values that parts work out then stay in them.
    """
    return ", ".join(_described(part))


def _mapped(part: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(part, torch.Tensor):
        return change(part)
    if isinstance(part, tuple | list):
        return type(part)(_mapped(item, change) for item in part)
    if _has_parts(part):
        made = copy.copy(part)
        for name in vars(part).keys() - _given(part).keys():
            # it was worked out from the tensors that are exchanged
            object.__delattr__(made, name)
        for name, value in _given(part).items():
            # a frozen dataclass forbids setattr, and this is a copy that nobody has seen
            object.__setattr__(made, name, _mapped(value, change))
        return made
    return part


def _described(part: Any) -> Iterator[str]:
    if isinstance(part, torch.Tensor):
        stride = part.stride() if part.layout == torch.strided else ""
        yield f"{part.dtype} {tuple(part.shape)} {stride} {part.layout} {part.device.type}"
    elif isinstance(part, tuple | list):
        yield f"{len(part)} items"
        for item in part:
            yield from _described(item)
    else:
        yield repr(part) if isinstance(part, PLAIN) else f"{type(part).__module__}.{type(part).__qualname__}"
        if _has_parts(part):
            for name, value in _given(part).items():
                yield name
                yield from _described(value)


def _has_parts(part: Any) -> bool:
    is_value = dataclasses.is_dataclass(part) and not isinstance(part, type)
    return is_value or isinstance(part, Projection | ProjectionStack)


def _given(part: Any) -> dict[str, Any]:
    """What a part was made of, without what it worked out from that and keeps."""
    of_class = type(part)
    return {
        name: value
        for name, value in vars(part).items()
        if not isinstance(getattr(of_class, name, None), functools.cached_property)
    }
