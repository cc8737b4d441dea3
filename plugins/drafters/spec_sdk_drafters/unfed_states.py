"""The target's states at positions that a head has not been fed yet.

Legend: N positions, M model dim of the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from spec_sdk.contracts import Hidden
from spec_sdk.model.session import PREFILL_CHUNK


class UnfedStates:
    """By slot, the states of successive positions, of the target layers ``taps``."""

    def __init__(self, taps: Sequence[int]) -> None:
        self.taps = tuple(taps)
        self._noted: dict[int, list[Hidden]] = {}

    def open(self, slot: int) -> None:
        """A new request has the slot."""
        self._noted[slot] = []

    def drop(self, slot: int) -> None:
        """The slot's request has ended."""
        self._noted.pop(slot, None)

    def has_any(self, slot: int) -> bool:
        """Whether some are there."""
        return bool(self._noted.get(slot))

    def note(self, slot: int, hidden: Hidden) -> None:
        """Keep the states of some positions, layer → [N, M]."""
        if len(hidden[self.taps[0]]):
            self._noted[slot].append({layer: hidden[layer] for layer in self.taps})

    def take(self, slot: int) -> Hidden:
        """All there are, at least one, which are then fed: layer → [N, M]."""
        noted, self._noted[slot] = self._noted[slot], []
        return joined(noted, self.taps)

    def take_all_but(self, last: int, slot: int) -> Iterator[Hidden]:
        """The first ones, up to the ``last``, in parts of bounded size."""
        noted = self._noted[slot]
        early = sum(len(hidden[self.taps[0]]) for hidden in noted) - last
        if early <= 0:
            return
        hidden = joined(noted, self.taps)
        # a copy, so that the states before them need not be kept
        self._noted[slot] = [{layer: states[early:].clone() for layer, states in hidden.items()}] if last else []
        for first in range(0, early, PREFILL_CHUNK):
            rows = slice(first, min(first + PREFILL_CHUNK, early))
            yield {layer: states[rows] for layer, states in hidden.items()}


def joined(noted: Sequence[Hidden], taps: Sequence[int]) -> Hidden:
    """States of successive positions, one below the other; empty where there are none."""
    known = [hidden for hidden in noted if hidden]
    if len(known) == 1:
        return {layer: known[0][layer] for layer in taps}
    return {layer: torch.cat([hidden[layer] for hidden in known]) for layer in taps} if known else {}
