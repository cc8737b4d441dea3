"""The token that stands where none is known yet, which files name in several ways."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields


def mask_token(options: Fields, keys: Sequence[str], vocabulary: int) -> int:
    """The token that one of the ``keys`` names.

    Raises UserError where none does, where two name different ones, and for one outside the ``vocabulary``.
    """
    said = {key: options.get(key) for key in keys if options.get(key) is not None}
    if not said:
        raise UserError(f"{options.where}: no {' or '.join(keys)}")
    (key, token), *others = said.items()
    for other, another in others:
        if another != token:
            raise UserError(f"{options.where}: {key} is {token!r}, and {other} is {another!r}")
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
        raise UserError(f"{options.where}: {key} is {token!r}, and there are {vocabulary} tokens")
    return token
