"""What drafters that note the target's hidden states of every committed token share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from spec_sdk.contracts import Drafter, Hidden, Request


class NotingDrafter(Drafter):
    """Hands each request's states to :meth:`_note` as they come."""

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        assert path_hidden is not None
        for request, hidden in zip(requests, path_hidden, strict=True):
            self._note(request, hidden)

    def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
        """Their states come with those of the next pass."""

    @abstractmethod
    def _note(self, request: Request, hidden: Hidden) -> None:
        """Keep what is needed of some positions' states, layer → [N, M]."""
