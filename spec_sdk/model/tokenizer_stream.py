"""Text out of tokens as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenStream:
    """Turns tokens into text piece by piece: all pieces joined are the decoding of all tokens.

    What a token adds depends on its neighbours (a space before a word, the bytes of one character), so a short window
    of tokens is decoded with and without the new one and the difference is passed on. Text that still ends in half a
    character is held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._window_text = ""
        self._told = 0

    def push(self, ids: Sequence[int]) -> str:
        """Take tokens; return the text that is complete by now and was not returned before."""
        return "".join(self._push_one(token) for token in ids)

    def flush(self) -> str:
        """The text still held back, at the end: half characters come out as U+FFFD."""
        rest = self._decode(self._window)[len(self._window_text) :]
        self._window, self._window_text, self._told = [], "", 0
        return rest

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if len(text) <= len(self._window_text) or text.endswith(REPLACEMENT):
            return ""
        new = text[len(self._window_text) :]
        # go on from what was just told, which is the left neighbour of what comes
        self._window = self._window[self._told :]
        self._told = len(self._window)
        self._window_text = self._decode(self._window)
        return new
