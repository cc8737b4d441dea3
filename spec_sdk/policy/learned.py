"""What the requests of a run share of an adaptive policy: what was measured, usual, and gained or lost."""

from __future__ import annotations

from spec_sdk.policy.acceptance import UsualAcceptance
from spec_sdk.policy.account import Account
from spec_sdk.policy.shapes import Widths
from spec_sdk.policy.stage_times import StageTimes

PLAIN_SAMPLES = 3
"""Plain steps timed before the first speculation: the very first may include a warm-up."""
LONGEST_WAIT = 512
"""Plain steps until speculation is tried again, at most."""


class Learned:
    """Times are the machine's, and so is the account. Acceptance is a first guess for every request."""

    def __init__(self, loss: float) -> None:
        self.times = StageTimes()
        self.account = Account(loss)
        self.usual = UsualAcceptance()
        self.widths = Widths()
        self.failures = 0
        self.waited = 0
        self.wait = 0

    @property
    def waiting(self) -> bool:
        """Whether it is too early to try again."""
        return self.waited < self.wait

    def begin_wait(self, retry: int) -> None:
        """Until the next trial: ``retry`` plain steps, twice as many after each further failure."""
        self.wait = min(retry << max(0, self.failures - 1), LONGEST_WAIT)
