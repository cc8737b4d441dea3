"""What the attention level's verifiers check in their options."""

from __future__ import annotations

from collections.abc import Iterable

from spec_sdk.contracts import SPACES, Space
from spec_sdk.errors import UserError, did_you_mean


def checked_space(space: str) -> Space:
    """``space`` if there is one of that name. Raises UserError with the nearest otherwise."""
    for known in SPACES:
        if space == known:
            return known
    raise UserError(f"attention_verifier.space: unknown space '{space}'{did_you_mean(space, SPACES)}")


def check_layers(option: str, chosen: Iterable[int], layers: int) -> None:
    """Raise UserError for the first of ``chosen`` that a target of so many layers does not have."""
    for layer in chosen:
        if not 0 <= layer < layers:
            raise UserError(
                f"attention_verifier.{option}: there is no layer {layer}; the target has {layers} layers, "
                f"0 to {layers - 1}"
            )
