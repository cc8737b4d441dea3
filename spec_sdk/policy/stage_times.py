"""What the stages of a cycle cost on this machine: from the times in its events, and from a cost curve if there is one.

All times are in seconds.
"""

from __future__ import annotations

import math

from spec_sdk.bench.cost_curve import PassCosts
from spec_sdk.running_times import RunningTime, SizeTimes

CATCH_UP = 16
"""Committed tokens not yet fed to the draft model, from which on feeding them counts apart from drafting."""
WIDER = 1.1
"""Unmeasured: a level of twice the nodes takes so many times as long to draft."""
CONTEXT_STEP = 64
"""A cost curve is read anew whenever the prefix has grown by so much."""


class StageTimes:
    """Times of a plain step, of drafting a tree, of verifying one, and of catching up.

    A tree is ``depth`` levels of ``width`` nodes. Catching up is feeding the draft model the committed tokens that it
    has not seen: the prompt, if it was not started with the request, or what was decoded plainly since.
    ``drafts_with_model`` False makes it free until measured, ``catches_up`` False altogether. ``longest_catch_up``: of
    more tokens so many are fed. ``silence``: a call in which nothing was proposed.
    """

    def __init__(self) -> None:
        self._draft: dict[int, SizeTimes] = {}
        self._verify = SizeTimes()
        self.plain = self._verify.of_size[1] = RunningTime()
        self.silence = RunningTime()
        self._feed = RunningTime()
        self._prefill = RunningTime()
        self.drafts_with_model = True
        self.catches_up = True
        self.longest_catch_up: int | None = None
        self._costs: PassCosts | None = None
        self._context = -CONTEXT_STEP
        self._levels_known: dict[tuple[int, int], float] = {}

    def use(self, costs: PassCosts) -> None:
        """Go by measured costs of passes. What stages take beside their passes is learned as without them."""
        self._costs = costs
        self.behind(0)

    def behind(self, context: int) -> None:
        """Passes are made behind so many tokens from now on."""
        if self._costs is None or abs(context - self._context) < CONTEXT_STEP:
            return
        self._context, curve, known = context, self._costs.target, dict[int, float]()
        self._levels_known.clear()

        def seconds(nodes: int) -> float:
            if nodes not in known:
                known[nodes] = curve.at(nodes, context)
            return known[nodes]

        self._verify.follow(seconds)
        for width, times in self._draft.items():
            self._follow_draft(width, times)

    @property
    def has_curve(self) -> bool:
        """Whether what passes cost was measured before."""
        return self._costs is not None

    @property
    def known(self) -> bool:
        """Whether any draft was timed yet."""
        return bool(self._draft)

    @property
    def knows_catching_up(self) -> bool:
        """Whether catching up was timed yet."""
        return self._feed.count > 0

    @property
    def settled(self) -> bool:
        """Whether there are enough samples to tell an outlier."""
        return sum(times.samples(1) for times in self._draft.values()) >= 3 and self._verify.samples(2) >= 3

    def draft(self, depth: int, width: int = 1) -> float:
        """Drafting a tree, nothing to catch up with. Unmeasured: half a plain step per level, or nothing."""
        if width in self._draft:
            return self._draft[width].at(depth)
        if not self._draft:
            if self._costs is None or self._costs.draft is None:
                return depth * self.plain.mean / 2 if self.drafts_with_model else 0.0
            # what the target's passes take beyond their curve, the draft model's will take too
            return self._levels(depth, width) * self.plain.mean / self._costs.target.at(1, self._context)
        # the width whose levels are the most like these
        nearest = min(self._draft, key=lambda known: max(known / width, width / known))
        seconds = self._draft[nearest].at(depth)
        if self._costs is None or self._costs.draft is None:
            return seconds * float(WIDER ** math.log2(width / nearest))
        return seconds * self._levels(depth, width) / self._levels(depth, nearest)

    def draft_level(self) -> float:
        """Drafting one level more, whatever its depth: as all depths together say."""
        times = self._draft.get(1)
        if times is None:
            return max(0.0, self.draft(3) - self.draft(2))
        slope = times.line[1]
        shaped = self._costs is not None and self._costs.draft is not None
        return slope * (self._levels(3, 1) - self._levels(2, 1)) if shaped else slope

    def _levels(self, depth: int, width: int) -> float:
        """What a draft model's passes take to grow a tree: one that feeds what was committed, and one for each level
        that has children.
        """
        seconds = self._levels_known.get((depth, width))
        if seconds is None:
            assert self._costs is not None and self._costs.draft is not None
            curve = self._costs.draft
            seconds = curve.at(2, self._context) + (depth - 1) * curve.at(width, self._context)
            self._levels_known[depth, width] = seconds
        return seconds

    def _follow_draft(self, width: int, times: SizeTimes) -> None:
        if self._costs is not None and self._costs.draft is not None:
            times.follow(lambda depth: self._levels(depth, width))

    def verify(self, nodes: int) -> float:
        """Scoring and committing a tree. Unmeasured: a tenth of a plain step more per node."""
        if not self._verify.has_met(2 if self._costs is None else 1):
            return self.plain.mean * (1 + (nodes - 1) / 10)
        return max(self.plain.mean, self._verify.at(nodes))

    def is_behind(self, unfed: int) -> bool:
        """Whether feeding so many tokens counts apart from drafting."""
        return unfed >= CATCH_UP and self.catches_up

    def catch_up(self, unfed: int) -> float:
        """Feeding ``unfed`` tokens. Unmeasured: half as long as the target's own prefill of so many."""
        if not self.is_behind(unfed):
            return 0.0
        return self._fed(unfed) * (self._feed.mean if self._feed.count else self._unmeasured_feed)

    def _fed(self, unfed: int) -> int:
        return unfed if self.longest_catch_up is None else min(unfed, self.longest_catch_up)

    def add_prefill(self, tokens: int, seconds: float) -> None:
        """The target's prefill."""
        if tokens >= CATCH_UP:
            self._prefill.add(seconds / tokens)

    def add_start(self, tokens: int, kept: int, seconds: float) -> None:
        """The drafter's own prefill of a prompt, of which its slot had the first ``kept`` tokens."""
        longest = self.longest_catch_up
        # what a slot keeps of a text, its drafter mostly keeps too; but the last of a long one lie where others lay
        fed = tokens - kept if longest is None or tokens <= longest else longest
        if fed >= CATCH_UP:
            self._add_feed(seconds / fed)

    def add_draft(self, depth: int, width: int, drafted: int, unfed: int, seconds: float) -> None:
        """A call for a tree, with ``unfed`` tokens not yet fed; ``drafted`` is how deep it came out."""
        if not drafted:
            self.silence.add(seconds)
        elif not self.is_behind(unfed):
            if width not in self._draft:
                self._draft[width] = SizeTimes()
                self._follow_draft(width, self._draft[width])
            self._draft[width].add(depth, seconds)
        else:
            self.add_catching_up(unfed, seconds, self.draft(depth, width))

    def add_catching_up(self, unfed: int, seconds: float, usual_s: float) -> float:
        """A call that fed ``unfed`` tokens, then drafted, which takes ``usual_s``: the seconds of feeding."""
        # a quarter at least, in case the guess of the draft itself is far too high
        fed_s = max(seconds - usual_s, seconds / 4)
        self._add_feed(fed_s / self._fed(unfed))
        return fed_s

    @property
    def _unmeasured_feed(self) -> float:
        return self._prefill.mean / 2 if self.drafts_with_model else 0.0

    def _add_feed(self, seconds: float) -> None:
        if not self._feed.count:
            # the guess stays as a sample: a first call that compiled something is then seen to be the outlier
            self._feed.add(self._unmeasured_feed)
        self._feed.add(seconds)

    def add_verify(self, nodes: int, seconds: float) -> None:
        """A pass over a tree; one node is a plain step."""
        self._verify.add(nodes, seconds)
