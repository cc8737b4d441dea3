"""Whether a checkpoint's tensors are those that its configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping

from spec_sdk.errors import UserError
from spec_sdk.model.weight_table import Shape


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
