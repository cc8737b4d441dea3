"""Stop strings: texts that end an answer, found across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until one of ``stops`` is complete in it; the text before that one is the answer's.

    Text that may be the beginning of a stop string is held back, so that nobody sees part of one. ``found`` says
    whether one was complete; what is pushed after it is dropped. Of several, the one that is complete first counts,
    however the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        self._stops = stops
        self._held = ""

    def push(self, text: str, may_end: bool = True) -> str:
        """Take text; return what is certain by now to be the answer's and was not returned before.

        Where it may not end the answer, a stop string that is complete in it is text like other.
        """
        if self.found:
            return ""
        held, text = len(self._held), self._held + text
        # what was complete in the text before did not end it
        firsts = {stop: text.find(stop, max(0, held + 1 - len(stop))) for stop in self._stops} if may_end else {}
        ends = [(place + len(stop), place) for stop, place in firsts.items() if place >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        held = max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text still held back, at the end of an answer that no stop string ended."""
        rest, self._held = self._held, ""
        return rest


def _begun(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` are the beginning of ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
