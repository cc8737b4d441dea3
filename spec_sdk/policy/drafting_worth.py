"""Does drafting go on, and is catching up worth its time? What cycles with a draft gained before, in seconds.

Catching up is paid once, and what it gains comes later: a drafter that is behind is not one whose drafts do not pay. So
the two are weighed apart.
"""

from __future__ import annotations

from spec_sdk.policy.learned import LONGEST_WAIT

GAINS_KEPT = 4
"""Gains that are set against later losses, in ``patience``."""
HOPED = 0.25
"""What a cycle with a draft gains, in plain steps, before any was made; it counts for so many cycles."""
HOPED_WEIGHT = 6.0
FORGET = 0.98
"""What a cycle's gain counts for one cycle later."""
FADE = 0.998
"""The same after a step without a draft: what lost once is hoped for again in the end."""
TOKENS_OF_A_CYCLE = 2
"""About so many tokens come of a cycle with a draft: by that the rest of an answer has a number of them."""
EARNED = 0.02
"""What it earns in plain steps by one in which catching up was not worth it: by and by it is tried all the same."""
MOST_EARNED = 256.0


class DraftingWorth:
    """Pauses drafting once it has lost ``patience`` plain steps, for ``retry`` of them, then for twice as many."""

    def __init__(self, patience: float, retry: int) -> None:
        self._patience, self._retry = patience, retry
        self._balance = self._credit = 0.0
        self._gains = self._cycles = 0.0
        self._failures = self._pause = 0

    @property
    def pauses(self) -> bool:
        """Whether the next step is a plain one."""
        return self._pause > 0

    def hopes(self, plain_s: float) -> bool:
        """Whether another cycle with a draft may gain, by what those before did."""
        return self._gained_by_a_cycle(plain_s) > 0

    def forgive(self) -> None:
        """Another prompt, another chance."""
        self._failures //= 2
        self._pause = min(self._pause, self._retry)

    def is_worth(self, catch_up_s: float, remaining: int, plain_s: float) -> bool:
        """Whether to catch up, which takes ``catch_up_s``, ``remaining`` tokens before the answer may end."""
        gain_s = self._gained_by_a_cycle(plain_s)
        return catch_up_s <= max(gain_s * remaining / TOKENS_OF_A_CYCLE, self._credit)

    def _gained_by_a_cycle(self, plain_s: float) -> float:
        return (self._gains + HOPED_WEIGHT * HOPED * plain_s) / (self._cycles + HOPED_WEIGHT)

    def paid(self, catch_up_s: float) -> None:
        """So much was spent on catching up."""
        self._credit = max(0.0, self._credit - catch_up_s)

    def stepped_plainly(self, plain_s: float) -> None:
        """A step without a draft."""
        self._pause = max(0, self._pause - 1)
        self._gains, self._cycles = FADE * self._gains, FADE * self._cycles
        self._credit = min(self._credit + EARNED * plain_s, MOST_EARNED * plain_s)

    def drafted(self, gained_s: float, plain_s: float) -> None:
        """A cycle gained so much beside plain decoding (negative: lost), catching up apart."""
        self._gains, self._cycles = FORGET * self._gains + gained_s, FORGET * self._cycles + 1
        most_s = self._patience * plain_s
        self._balance = min(self._balance + gained_s, GAINS_KEPT * most_s)
        if self._balance == GAINS_KEPT * most_s:
            self._failures = 0
        elif self._balance < -most_s:
            self._pause = min(self._retry << self._failures, LONGEST_WAIT)
            self._failures, self._balance = min(self._failures + 1, 16), 0.0
