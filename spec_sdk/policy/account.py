"""The account that keeps speculation from costing more than a set share of plain decoding."""

from __future__ import annotations


class Account:
    """Time that speculation may lose, in seconds.

    Every token earns ``share`` of a plain step. A speculative cycle pays in what it saved against plain decoding, or
    draws what it lost. A cycle is allowed only if the balance covers its loss should nothing be accepted. So, as far as
    times are as predicted, all time spent stays below (1 + share) times that of plain decoding, whatever is accepted
    when.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.balance = 0.0

    def book(self, plain_s: float, saved_s: float, most: float) -> None:
        """A cycle whose tokens would have taken ``plain_s``, and that ``saved_s`` (negative: lost).

        Savings above ``most`` are not kept: old gains must not pay for long losses.
        """
        self.balance = min(self.balance + self.share * plain_s + saved_s, most)

    def covers(self, loss_s: float) -> bool:
        """Whether a loss of ``loss_s`` is affordable."""
        return self.balance >= loss_s
