"""Whether a checkpoint's tensors are those that its configuration asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spec_sdk.errors import UserError
from spec_sdk.model.weight_table import Shape

BLOCK = re.compile(r"(.*\blayers\.)\d+\.")
"""How the name of a block's tensor begins."""
PREDICTION = ("eh_proj.weight", "enorm.weight", "hnorm.weight")
"""What a block that predicts further tokens has: it may follow the model's own."""


def check_shapes(
    expected: Mapping[str, Shape], found: Mapping[str, Shape], where: str, hints: Mapping[str, str] | None = None
) -> None:
    """Raise UserError unless ``found`` has every expected tensor in its shape. More tensors may be there.

    ``hints`` says of some tensors what it means if only they are missing.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        if len(missing) == 1:
            raise UserError(f"{where}: tensor '{missing[0]}' is missing{(hints or {}).get(missing[0], '')}")
        none = "; it has none that its config asks for" if len(missing) == len(expected) else ""
        raise UserError(f"{where}: tensor '{missing[0]}' and {len(missing) - 1} more are missing{none}")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise UserError(
                f"{where}: tensor '{name}' has shape {list(found[name])}, but the config asks for {list(shape)}"
            )


def unread_tensors(expected: Iterable[str], found: Iterable[str]) -> list[str]:
    """Weights and biases that lie in blocks like those of ``expected``, or in further ones, and are none of them."""
    asked, there = set(expected), sorted(found)
    prefixes = {match[1] for name in asked if (match := BLOCK.match(name))}
    predicting = {match[0] for name in there if name.endswith(PREDICTION) and (match := BLOCK.match(name))}
    return [
        name
        for name in there
        if name not in asked
        and name.endswith((".weight", ".bias"))
        and (match := BLOCK.match(name))
        and match[1] in prefixes
        and match[0] not in predicting
    ]
