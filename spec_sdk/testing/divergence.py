"""Telling a rounding tie from a fault, where two lossless runs in low precision part ways.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def first_divergence_is_a_tie(
    plain: Sequence[int], speculated: Sequence[int], plain_logits_V: torch.Tensor, speculated_logits_V: torch.Tensor
) -> bool:
    """True if two greedy runs first differ where rounding alone can have decided.

    The logits [V] are those of the two ways of computing the prefix before the first difference: as plain decoding
    does, and in a pass as wide as the speculated one. If one of them prefers one token and the other the other, then
    the gap between the two tokens' logits is at most twice the largest difference between the passes; a larger gap is
    a fault. Runs that never differ pass; a run that is a mere beginning of the other does not: it stopped too early.
    """
    at = next((i for i, (a, b) in enumerate(zip(plain, speculated, strict=False)) if a != b), None)
    if at is None:
        return len(plain) == len(speculated)
    plain_V, speculated_V = plain_logits_V.double(), speculated_logits_V.double()
    gap = float((plain_V[plain[at]] - plain_V[speculated[at]]).abs())
    noise = float((plain_V - speculated_V).abs().max())
    return gap <= 2 * noise
