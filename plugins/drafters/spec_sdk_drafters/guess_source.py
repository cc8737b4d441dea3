"""Where guesses come from: what a source of tokens answers, at the text's end and after tokens that may follow it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from spec_sdk.contracts import TopTokens
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.acceptance_rates import AcceptanceRates


class GuessSource(ABC):
    """Guesses for one request's text. A *place* is what the source knows of a path: the text, and drafted tokens."""

    name: str = "other"
    """What its guesses are called where several sources make a tree."""
    further_weight = 0.25
    """What its log odds count for beside a better informed source: less than 1, since sources mostly know the same."""
    further_offset = 0.6
    """What it adds there whatever it says, so that one that says nothing new (log odds of -2.4) changes nothing."""
    rates: AcceptanceRates
    """How often its guesses are right, by kind."""

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with ``tokens``."""

    def record(self, tree: TokenTree, top: TopTokens, path: Sequence[int]) -> None:  # noqa: B027
        """The target scored ``tree``; the nodes of ``path``, the root first, were accepted.

        :meth:`extend` was called with what that gave. A source that learns nothing from the target's scores leaves this
        as it is.
        """

    @abstractmethod
    def end(self) -> Any:
        """The place at the text's end."""

    @abstractmethod
    def after(self, place: Any, token: int) -> Any:
        """The place after one more token."""

    @abstractmethod
    def guesses(self, place: Any) -> Mapping[int, Hashable]:
        """Token → kind of guess. The kind says how sure the source is: its rate is learned."""

    @abstractmethod
    def other(self, place: Any) -> Hashable:
        """The kind of all tokens that it does not guess."""

    def silent(self, place: Any) -> bool:
        """Whether it knows nothing of the place, so that what it does not guess tells nothing. By default never."""
        return False


class Sources(ABC):
    """Makes the sources of one kind for an engine's requests, and holds what they share if anything is kept."""

    target_top_k: int = 0

    @abstractmethod
    def new(self, temperature: float) -> GuessSource:
        """The source of a request that begins, which is sampled at ``temperature``; 0: greedy."""

    @abstractmethod
    def keep(self, answer: Sequence[int]) -> None:
        """A request has ended with this answer."""
