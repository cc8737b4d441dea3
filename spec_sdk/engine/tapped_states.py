"""Hidden states that a drafter taps, kept as long as the cache rows of their tokens.

Legend: N tokens, M model dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.common_prefix import common_prefix
from spec_sdk.contracts.drafter import Hidden


class TappedStates:
    """Per slot, the committed tokens and their states: layer → [N, M], a row per token.

    A request that begins with tokens of the slot's last one takes its states over with its cache, so that a drafter
    with taps sees the passes, rounding included, that a drafter without taps would.

    ``last_only``: of all tokens together there are the states of the last one, or none.
    """

    def __init__(self, last_only: bool = False) -> None:
        self._last_only = last_only
        self._tokens: dict[int, list[int]] = {}
        self._parts: dict[int, list[Hidden]] = {}

    def shared(self, slot: int, tokens: Sequence[int]) -> int:
        """How many of the first of ``tokens`` have their states here."""
        return common_prefix(self._tokens.get(slot, []), tokens)

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of a slot."""
        if self._last_only:
            if length < len(self._tokens.get(slot, [])):
                self._parts[slot] = []
            self._tokens[slot] = self._tokens.get(slot, [])[:length]
            return
        whole = self.of(slot)
        self._tokens[slot] = self._tokens.get(slot, [])[:length]
        # a copy of what is kept: a slice would hold the memory of the rest
        self._parts[slot] = [{layer: h_NM[:length].clone() for layer, h_NM in whole.items()}] if length else []

    def append(self, slot: int, tokens: Sequence[int], hidden: Hidden) -> None:
        """The states of the tokens that were committed next."""
        self._tokens.setdefault(slot, []).extend(tokens)
        if self._last_only:
            # copies, so that what stands before can go
            last = {layer: h_NM[-1:].clone() for layer, h_NM in hidden.items()}
            self._parts[slot] = [last] if last else []
            return
        self._parts.setdefault(slot, []).append(hidden)

    def of(self, slot: int) -> Hidden:
        """The states of all tokens of a slot; without layers where it has none."""
        parts = self._parts.get(slot, [])
        if len(parts) > 1:
            parts[:] = [{layer: torch.cat([part[layer] for part in parts]) for layer in parts[0]}]
        return parts[0] if parts else {}
