"""Looking up runs of tokens in a datastore: where they occur in its texts, and what follows them there, counted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spec_sdk_drafters.datastore_file import SORTED_BY, DatastoreTensors


class Run(NamedTuple):
    """A run of ``length`` tokens: it begins the suffixes ``first`` … ``end - 1`` of the sorted ones."""

    first: int
    end: int
    length: int

    @property
    def occurrences(self) -> int:
        return self.end - self.first


class Continuation(NamedTuple):
    """A token that followed a run, and how often."""

    token: int
    occurrences: int


class Datastore:
    """What was written in texts of the past. Everything that it is asked takes time logarithmic in their length."""

    def __init__(self, tensors: DatastoreTensors) -> None:
        self._tokens, self._suffixes, self._starts = tensors.tokens, tensors.suffixes, tensors.starts

    def find(self, tokens: Sequence[int]) -> Run | None:
        """Where a run of one token or more occurs; None where it does not, or is longer than what can be looked up."""
        length, text = len(tokens), self._tokens
        if length > SORTED_BY or not 0 <= tokens[0] < len(self._starts) - 1:
            return None
        first, end = self._starts[tokens[0]], self._starts[tokens[0] + 1]
        if length > 1:
            wanted = list(tokens)

            def beginning(place: int) -> list[int]:
                found: list[int] = text[place : place + length].tolist()
                return found

            end = bisect_right(self._suffixes, wanted, first, end, key=beginning)
            first = bisect_left(self._suffixes, wanted, first, end, key=beginning)
        return Run(first, end, length) if first < end else None

    def longest(self, tokens: Sequence[int], shortest: int, longest: int, more_than: int = 0) -> Run | None:
        """The longest run at the end of ``tokens``, of ``shortest`` to ``longest``, that occurs more often than so."""
        found = None
        longest = min(longest, len(tokens))
        # a run occurs at least as often as those that it ends
        while shortest <= longest:
            length = (shortest + longest + 1) // 2
            run = self.find(tokens[len(tokens) - length :])
            if run is not None and run.occurrences > more_than:
                found, shortest = run, length + 1
            else:
                longest = length - 1
        return found

    def after(self, run: Run, token: int) -> Run | None:
        """The run and then ``token``; None where that occurs nowhere."""
        if run.length >= SORTED_BY:
            return None
        key = self._following(run)
        first = bisect_left(self._suffixes, token, run.first, run.end, key=key)
        end = bisect_right(self._suffixes, token, first, run.end, key=key)
        return Run(first, end, run.length + 1) if first < end else None

    def continuations(self, run: Run, rarest: float) -> list[Continuation]:
        """What followed a run in at least the share ``rarest`` of its occurrences; the texts' ends are among them.

        Occurrences are sorted by what follows, so a token with such a share is met when they are looked at in steps
        that are no longer than its own: at most 1 / rarest + 1 of them.
        """
        if run.length >= SORTED_BY:
            return []
        key = self._following(run)
        step = max(1, int(run.occurrences * rarest))
        found, done = list[Continuation](), run.first
        # what begins at `done` or up to a step later, and is as long as a step, lies here
        while (at := done + step - 1) < run.end:
            token = key(self._suffixes[at])
            first = bisect_left(self._suffixes, token, done, at, key=key)
            done = bisect_right(self._suffixes, token, at, run.end, key=key)
            if done - first >= rarest * run.occurrences:
                found.append(Continuation(token, done - first))
        return found

    def _following(self, run: Run) -> Callable[[int], int]:
        """The token that follows a run at a place where it occurs: at the least the end of its text."""
        # of a damaged file the last token, which costs acceptance and nothing else
        text, length, last = self._tokens, run.length, len(self._tokens) - 1
        return lambda place: text[min(place + length, last)]
