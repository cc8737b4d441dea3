"""What a user says of a draft head beside naming it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.model.chosen_weights import kept_in_bits
from spec_sdk.ops import Ops


@dataclass(frozen=True)
class HeadChoices:
    """``method``: the one that it must be, or auto. ``target_layers``: those to read in place of the ones that its
    files mean. ``context``: most tokens to draft for, in place of its own. ``state``: of a prediction module, the
    target's state that it reads: before or after the final norm, or auto. ``weights``: dense, in int8 or int4, or auto:
    int4, or else int8, where the backend multiplies them as fast. ``stored``: what the option
    ``model.draft_weights`` makes of matrices that its files have in few bits.
    """

    method: str = "auto"
    target_layers: tuple[int, ...] | None = None
    context: int | None = None
    state: str = "auto"
    weights: str = "dense"
    stored: str = "auto"

    def bits(self, ops: Ops, dtype: torch.dtype) -> int | None:
        """The bits of its matrices; None for ``dtype``. What rounding changes is what is drafted, never the output."""
        if self.weights == "auto":
            return next((bits for bits in (4, 8) if ops.fast_in_bits(bits, dtype)), None)
        return {"int8": 8, "int4": 4}.get(self.weights)

    def keeps(self, stored_bits: int, ops: Ops, dtype: torch.dtype) -> bool:
        """Whether a matrix that its files have in so many bits stays so."""
        return kept_in_bits(self.stored, "", stored_bits, lambda bits: ops.fast_in_bits(bits, dtype)) is not None


AS_PUBLISHED = HeadChoices()
