"""A rank's place among several, without the others: for what only depends on the place."""

from __future__ import annotations

from spec_sdk.ranks import Ranks


def ranks_at(rank: int, size: int) -> Ranks:
    """Rank ``rank`` of ``size``, which must not call a collective operation."""
    ranks = Ranks()
    ranks.rank, ranks.size = rank, size
    return ranks
