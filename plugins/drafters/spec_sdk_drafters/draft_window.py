"""Which part of a long text a draft model reads: the last tokens, as their guesses hang on little else.

Reading a prompt of thousands of tokens, and attending to them in each pass, takes more of a draft model's time than
the text before is worth to its guesses. So it begins with the last ones, at position 0, and begins anew with the last
ones where it has no more room.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import option

WINDOW = 1024


def window_option() -> int | None:
    """The option ``window``."""
    return option(
        WINDOW,
        "of a longer text the draft model reads so many tokens, the last; it begins anew where it has twice as many",
        minimum=16,
        means={None: "it reads all that its context has room for"},
    )


@dataclass(frozen=True)
class DraftWindow:
    """A text of up to ``whole`` tokens is read from its beginning, of a longer one the last ``last``; ``room``: most
    tokens that may be in the cache, drafted ones included.
    """

    last: int
    whole: int
    room: int

    @classmethod
    def of(cls, window: int | None, context: int) -> DraftWindow:
        """By the option, for a model with a context of so many tokens."""
        room = context if window is None else min(2 * window, context)
        # one token is pending, and one at least is drafted
        whole = room - 2 if window is None else min(window, room - 2)
        # what is read anew is worth it for as many tokens again
        return cls(min(whole, room // 2), whole, room)

    def first(self, tokens: int) -> int:
        """Which token of a text of so many is the first that is read."""
        return 0 if tokens <= self.whole else tokens - self.last
