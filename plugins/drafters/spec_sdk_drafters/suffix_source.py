"""Guesses from what followed the last tokens earlier, in the request's own text and in answers that were kept."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice

from spec_sdk_drafters.acceptance_rates import AcceptanceRates, RatesByTemperature
from spec_sdk_drafters.guess_source import GuessSource, Sources
from spec_sdk_drafters.suffix_automaton import Cursor, SuffixAutomaton

LONGEST = 24
"""Tokens of the longest run that is looked up."""
CONTEXTS = 3
"""Runs of different lengths that are asked for their followers; more make guesses that are hardly ever right."""
RAREST = 0.05
"""A token that followed less often than this share is not guessed."""
LENGTHS = (1, 2, 4, 8)
"""Run lengths are told apart up to these, and beyond the last."""
SHARES = (0.2, 0.5)
PRIOR = (
    (0.06, 0.13, 0.21, 0.35, 0.62),
    (0.06, 0.17, 0.30, 0.54, 0.80),
    (0.10, 0.25, 0.35, 0.62, 0.80),
    (0.12, 0.30, 0.40, 0.77, 0.88),
    (0.15, 0.33, 0.45, 0.89, 0.97),
)
"""Rates to begin with, by run length and share: below 0.2, 0.5 and 1, the only occurrence, always the same follower.

Those of SmolLM2-135M-Instruct on 30 prompts of Spec-Bench, as the other tables of this kind here.
"""
SHORTER_PRIOR = 0.4
"""The rate of what only a shorter run was followed by, as a share of that."""
NOT_FOUND_PRIOR = 0.06


class KeptAnswers:
    """Automata over answers of the past: the older half is dropped when there are more than ``most`` tokens."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self.automata = [SuffixAutomaton(LONGEST)]

    def add(self, answer: Sequence[int]) -> None:
        """Keep an answer; of a very long one the end."""
        answer = answer[-self._half + 1 :] if self._half > 1 else []
        if self.automata[-1].size + len(answer) + 1 > self._half:
            self.automata = [self.automata[-1], SuffixAutomaton(LONGEST)]
        # no token: no run reaches from one answer into the next
        self.automata[-1].extend([*answer, -1])


class SuffixSource(GuessSource):
    """Followers of the longest runs at the text's end."""

    name = "suffix"

    # beside a model; fitted, as the rates
    further_weight, further_offset = 0.75, 1.65

    def __init__(self, rates: AcceptanceRates, kept: KeptAnswers | None = None) -> None:
        self.rates = rates
        self._own = SuffixAutomaton(LONGEST)
        self._kept = kept
        self._recent: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        self._own.extend(tokens)
        if self._kept is not None:
            self._recent = [*self._recent, *tokens][-LONGEST:]

    def end(self) -> list[tuple[SuffixAutomaton, Cursor]]:
        places = [(self._own, self._own.end())]
        for automaton in self._kept.automata if self._kept is not None else ():
            cursor = Cursor(0, 0)
            for token in self._recent:
                cursor = automaton.advance(cursor, token)
            places.append((automaton, cursor))
        return places

    def after(self, place: list[tuple[SuffixAutomaton, Cursor]], token: int) -> list[tuple[SuffixAutomaton, Cursor]]:
        return [(automaton, automaton.advance(cursor, token)) for automaton, cursor in place]

    def guesses(self, place: list[tuple[SuffixAutomaton, Cursor]]) -> Mapping[int, Hashable]:
        found: dict[int, Hashable] = {}
        # the longest run first; the own text before what was kept
        runs = [(automaton, run) for automaton, cursor in place for run in islice(automaton.shorter(cursor), CONTEXTS)]
        if len(place) > 1:
            runs.sort(key=lambda item: -item[1].length)
        longest = runs[0][1].length if runs else 0
        for automaton, run in runs[:CONTEXTS]:
            length, shorter = length_class(run.length), run.length < longest
            followers = automaton.followers(run.state)
            of = sum(followers.values())
            for token, occurrences in followers.items():
                share = occurrences / of
                if share >= RAREST and token >= 0 and token not in found:
                    found[token] = length, share_class(share, of), shorter
        return found

    def other(self, place: list[tuple[SuffixAutomaton, Cursor]]) -> Hashable:
        return None


class SuffixSources(Sources):
    """``keep``: past answers, of ``most_kept`` tokens, are looked up too, and what was learned is used again."""

    def __init__(self, keep: bool, most_kept: int) -> None:
        self._kept = KeptAnswers(most_kept) if keep else None
        self._rates = RatesByTemperature(prior, keep)

    def new(self, temperature: float) -> SuffixSource:
        return SuffixSource(self._rates.of(temperature), self._kept)

    def keep(self, answer: Sequence[int]) -> None:
        if self._kept is not None:
            self._kept.add(answer)


def prior(kind: tuple[int, int, bool] | None) -> float:
    """The rate of a kind of guess before any was seen."""
    if kind is None:
        return NOT_FOUND_PRIOR
    length, share, shorter = kind
    return PRIOR[length][share] * (SHORTER_PRIOR if shorter else 1)


def length_class(length: int) -> int:
    """The class of a run by its tokens: see :data:`LENGTHS`."""
    return bisect_left(LENGTHS, length)


def share_class(share: float, of: int) -> int:
    """The class of a token that followed in the share of ``of`` occurrences: see :data:`PRIOR`."""
    if share == 1:
        return 3 if of == 1 else 4
    return bisect_right(SHARES, share)
