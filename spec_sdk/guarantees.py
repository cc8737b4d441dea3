"""How an output relates to plain decoding with the target, and how the guarantees of parts add up."""

from __future__ import annotations

from typing import Literal

Guarantee = Literal["exact", "distribution", "relaxed"]
GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "relaxed")


def weakest(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of a whole is the weakest of its parts': exact > distribution > relaxed."""
    return max(guarantees, key=GUARANTEES.index)
