"""The n-grams that lookahead decoding has seen: by their first token, of each the ones that came up last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class NgramPool:
    """Token → the ``n - 1`` tokens that went on from it: at most ``most`` different ones, the least recent dropped."""

    def __init__(self, n: int, most: int) -> None:
        self.n = n
        self._most = most
        # a dict as an ordered set: the latest last
        self._after: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram; one that is kept already becomes the latest again."""
        after = self._after.setdefault(ngram[0], {})
        rest = tuple(ngram[1:])
        after.pop(rest, None)
        after[rest] = None
        if len(after) > self._most:
            del after[next(iter(after))]

    def add_text(self, tokens: Sequence[int]) -> None:
        """Keep every n-gram of a text."""
        for begin in range(len(tokens) - self.n + 1):
            self.add(tokens[begin : begin + self.n])

    def after(self, token: int) -> Iterable[tuple[int, ...]]:
        """What went on from ``token``, the latest first."""
        return reversed(self._after.get(token, {}))
