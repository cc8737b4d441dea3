"""A decoder whose weights the kernels know the places of, and are told anew once they lie elsewhere."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any

from spec_sdk.model.decoder import Decoder


class LaidOut(ABC):
    """What calls kernels with a decoder's weights. Those that it told them of live as long as they are read.

    An embedding that a draft model borrows may be laid out anew between two passes.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._weights = self._read_weights()
        self._most_rows = self._lay_out()

    @abstractmethod
    def _read_weights(self) -> tuple[Any, ...]:
        """What the decoder has now of the weights that may come to lie elsewhere: the very objects."""

    @abstractmethod
    def _lay_out(self) -> int:
        """Tell the kernels where weights lie; how many rows they take at most, 0 where they lack parts."""

    @property
    def takes_any(self) -> bool:
        """Whether the kernels have all parts."""
        return self._most_rows > 0

    def _follow(self) -> None:
        """Tell the kernels anew if the decoder has other weights than they know."""
        weights = self._read_weights()
        if not all(map(operator.is_, weights, self._weights)):
            self._weights, self._most_rows = weights, self._lay_out()
