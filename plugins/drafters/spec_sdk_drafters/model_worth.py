"""Is asking a model worth its time? From what asking gained and took before, and nothing else."""

from __future__ import annotations

from bisect import bisect_right

from spec_sdk.running_times import RunningTime, SizeTimes

CATCH_UP = 16
"""Committed tokens that the model has not seen, from which on feeding them counts apart from drafting."""
SURENESS = (0.1, 0.25, 0.45, 0.65, 0.85)
"""Situations are told apart by how probable the best guess without the model is, at these."""
HOPED = 0.7
"""What asking gains in tokens where there is no guess, before it was tried; less in proportion to what is guessed."""
HOPED_WEIGHT = 3.0
REACH_WORTH = 0.4
"""What a further level gives, in tokens for every node that is reached, before any was grown."""
REACH_WEIGHT = 4.0
FORGET = 0.98
"""What a call counts for one call later, of its situation."""
FADE = 0.995
"""What calls count for after a cycle of their situation without one: the model is tried again in the end."""
ASSUMED_FEED = 0.05
"""Feeding the target one token of many takes so much of a plain step, before the model was fed."""
CREDIT = 4.0
"""Tokens that trying may lose at first; a trial after a pause may lose ``TRIAL``."""
TRIAL = 1.5
EARNED = 0.05
"""What it earns in tokens by a cycle in which nothing but the credit speaks against asking: catching up with a long
prompt may take more than there ever was.
"""
MOST_CREDIT = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 32, 2048
"""Cycles without a question after one that used up the credit: doubled each time, halved by credit that is full."""


class ModelWorth:
    """Counts what asking gained, by how sure the guesses without the model were; times what it took.

    A gain is the number of tokens that were accepted beyond those that the guesses alone would have had accepted, less
    the price of the nodes that they took more. What asking loses is bounded: a credit in tokens is used up by it,
    earned by what it gains, and by waiting for it. ``share``: about what a pass of the model takes of one of the
    target's.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._seconds = SizeTimes()
        self._feed = RunningTime()
        self._gained = [0.0] * (len(SURENESS) + 1)
        self._levels = [0.0] * (len(SURENESS) + 1)
        self._calls = [0.0] * (len(SURENESS) + 1)
        self._given = self._reached = 0.0
        self._credit = CREDIT
        self._failures = self._pause = 0

    def asks(self, surest: float, unfed: int, remaining: int, tokens_per_second: float) -> bool:
        """Whether to ask in this cycle, ``remaining`` tokens before the answer may end. Free time: always."""
        if not tokens_per_second:
            return True
        place = situation(surest)
        gain = self._net_gain(place, surest, tokens_per_second)
        price = self.catch_up(unfed, tokens_per_second)
        # what is fed now need not be fed later: about every fourth token of the rest of the answer is drafted by a call
        if gain > 0 and price <= gain * max(remaining, 4) / 4:
            if price <= self._credit:
                return True
            self._credit += EARNED
        for counts in (self._calls, self._gained, self._levels):
            counts[place] *= FADE
        return False

    def may_ask(self, tokens_per_second: float) -> bool:
        """Whether to ask in this cycle if the guesses are unsure enough. To be called once a cycle: it ends pauses."""
        if not tokens_per_second:
            return True
        if self._pause:
            self._pause -= 1
            return False
        bounds = (0.0, *SURENESS)
        return any(self._net_gain(place, surest, tokens_per_second) > 0 for place, surest in enumerate(bounds))

    def _net_gain(self, place: int, surest: float, tokens_per_second: float) -> float:
        """Tokens that a call gains in a situation, less its time."""
        calls = self._calls[place]
        gain = (self._gained[place] + HOPED_WEIGHT * HOPED * (1 - surest)) / (calls + HOPED_WEIGHT)
        levels = (self._levels[place] + HOPED_WEIGHT) / (calls + HOPED_WEIGHT)
        return gain - (self.draft_s(levels) * tokens_per_second if self._timed else self.share * levels)

    def level_cost(self, tokens_per_second: float) -> float:
        """What one level more takes, in tokens."""
        if not tokens_per_second:
            return 0.0
        return max(0.0, self.draft_s(3) - self.draft_s(2)) * tokens_per_second if self._timed else self.share

    @property
    def reach_worth(self) -> float:
        """Tokens that a further level gives for every node that the model takes to be reached."""
        return (self._given + REACH_WEIGHT * REACH_WORTH) / (self._reached + REACH_WEIGHT)

    def observe_reach(self, given: float, reached: float) -> None:
        """A tree whose levels below the first give so many tokens, where their parents' probabilities sum up so."""
        self._given, self._reached = FORGET * self._given + given, FORGET * self._reached + reached

    def draft_s(self, levels: float) -> float:
        """The seconds of a call for so many levels."""
        below = int(levels)
        part = levels - below
        return (1 - part) * self._seconds.at(below) + part * self._seconds.at(below + 1)

    def catch_up(self, unfed: int, tokens_per_second: float) -> float:
        """What feeding so many tokens takes, in tokens."""
        if unfed < CATCH_UP:
            return 0.0
        return unfed * (self._feed.mean * tokens_per_second if self._feed.count else ASSUMED_FEED * self.share)

    def observe(
        self, surest: float, gain: float, levels: int, unfed: int, seconds: float, tokens_per_second: float
    ) -> None:
        """A call gave a tree of so many levels, which gained ``gain`` tokens."""
        place = situation(surest)
        if unfed < CATCH_UP:
            self._seconds.add(levels, seconds)
        elif self._timed:
            self._feed.add(max(seconds - self.draft_s(levels), seconds / 4) / unfed)
        else:
            self._feed.add(seconds / unfed / 2)
        self._calls[place] = FORGET * self._calls[place] + 1
        self._gained[place] = FORGET * self._gained[place] + gain
        self._levels[place] = FORGET * self._levels[place] + levels
        if not tokens_per_second:
            return
        gained = gain - seconds * tokens_per_second
        # what was waited for is not lost to another request's question
        self._credit = min(self._credit + gained, max(self._credit, MOST_CREDIT))
        if gained > 0 and self._credit >= MOST_CREDIT:
            self._failures //= 2
        elif self._credit < 0:
            self._pause = min(FIRST_PAUSE << self._failures, LONGEST_PAUSE)
            self._failures, self._credit = min(self._failures + 1, 16), TRIAL
            # hope for the better, but less each time
            self._calls = [0.5 * calls for calls in self._calls]
            self._gained = [0.5 * gained for gained in self._gained]
            self._levels = [0.5 * levels for levels in self._levels]

    @property
    def _timed(self) -> bool:
        return self._seconds.samples(0) > 0


def situation(surest: float) -> int:
    """What is counted together: a class of how sure the best guess is."""
    return bisect_right(SURENESS, surest)
