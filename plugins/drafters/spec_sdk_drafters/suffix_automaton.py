"""A suffix automaton that grows token by token: where the last tokens of a text occurred before, and what followed.

Every state stands for the runs of tokens that end at the same places (Blumer et al. 1985); adding a token takes
constant time on average. Here a state also counts those places, for runs of at most ``longest`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROOT = 0


class Cursor(NamedTuple):
    """The longest run at the end of some text that the automaton knows: its state, and its length in tokens."""

    state: int
    length: int


class SuffixAutomaton:
    """Counts runs of up to ``longest`` tokens and their followers in the tokens that :meth:`extend` was given."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.size = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._count = [0]
        self._whole = ROOT
        # what follows a run of `longest` tokens makes a run of one more, which is counted too
        self._counted = Cursor(ROOT, 0)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to the text."""
        for token in tokens:
            self._append(token)
            self._counted = cursor = self._within(
                Cursor(self._next[self._settled(self._counted)][token], self._counted.length + 1), self.longest + 1
            )
            state = cursor.state
            while state != ROOT:
                self._count[state] += 1
                state = self._link[state]
            self.size += 1

    def end(self) -> Cursor:
        """The longest run of at most ``longest`` tokens at the text's end that was followed by something before."""
        state = self._settled(self._counted)
        while state != ROOT and not self._next[state]:
            state = self._link[state]
        return self._within(Cursor(state, min(self._length[state], self._counted.length)), self.longest)

    def advance(self, cursor: Cursor, token: int) -> Cursor:
        """The longest known run at the end of the cursor's, and then ``token``."""
        state, length = cursor
        while state != ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return Cursor(ROOT, 0)
        return self._within(Cursor(self._next[state][token], length + 1), self.longest)

    def shorter(self, cursor: Cursor) -> Iterator[Cursor]:
        """The cursor's run and those at its end with followers besides, the longest first, none empty."""
        state, length = cursor
        while state != ROOT:
            yield Cursor(state, length)
            state = self._link[state]
            length = self._length[state]

    def followers(self, state: int) -> dict[int, int]:
        """The tokens that followed the runs of a state, and how often, in no order."""
        count = self._count
        return {token: count[after] for token, after in self._next[state].items()}

    def _append(self, token: int) -> None:
        last, new = self._whole, self._state(self._length[self._whole] + 1, {})
        while last != -1 and token not in self._next[last]:
            self._next[last][token] = new
            last = self._link[last]
        if last == -1:
            self._link[new] = ROOT
        else:
            after = self._next[last][token]
            if self._length[after] == self._length[last] + 1:
                self._link[new] = after
            else:
                self._link[new] = self._split(last, token, after)
        self._whole = new

    def _split(self, last: int, token: int, after: int) -> int:
        """A state of its own for those runs of ``after`` that are one longer than the runs of ``last``, or shorter."""
        short = self._state(self._length[last] + 1, dict(self._next[after]))
        self._link[short] = self._link[after]
        self._count[short] = self._count[after]
        self._link[after] = short
        while last != -1 and self._next[last].get(token) == after:
            self._next[last][token] = short
            last = self._link[last]
        return short

    def _state(self, length: int, following: dict[int, int]) -> int:
        self._next.append(following)
        self._link.append(ROOT)
        self._length.append(length)
        self._count.append(0)
        return len(self._next) - 1

    def _settled(self, cursor: Cursor) -> int:
        """The state that the cursor's run has now: splitting may have given it another."""
        state = cursor.state
        while state != ROOT and self._length[self._link[state]] >= cursor.length:
            state = self._link[state]
        return state

    def _within(self, cursor: Cursor, longest: int) -> Cursor:
        shortened = cursor if cursor.length <= longest else Cursor(cursor.state, longest)
        settled = self._settled(shortened)
        return shortened if settled == shortened.state else Cursor(settled, shortened.length)
