"""What options of the attention level's verifiers have in common."""

from __future__ import annotations

from collections.abc import Iterable

from spec_sdk.contracts import option
from spec_sdk.errors import UserError


def space_option(what: str) -> str:
    """The option ``space``: one of :data:`spec_sdk.contracts.SPACES`. ``what`` is measured there."""
    return option(
        "heads",
        f"where {what} is measured",
        choices={"heads": "before the output projection", "residual": "after it"},
    )


def check_layers(option: str, chosen: Iterable[int], layers: int) -> None:
    """Raise UserError for the first of ``chosen`` that a target of so many layers does not have."""
    for layer in chosen:
        if not 0 <= layer < layers:
            raise UserError(
                f"attention_verifier.{option}: there is no layer {layer}; the target has {layers} layers, "
                f"0 to {layers - 1}"
            )
