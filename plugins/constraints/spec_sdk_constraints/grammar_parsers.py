"""The parsers of one grammar: each answer's is a copy of the first, which is compiled anew when its lexer is full."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from llguidance import LLMatcher, LLTokenizer

RENEWED_AFTER = 1000
"""Masks that a lexer must have made for one answer before it is taken to be full: one that gives up sooner would do so
anew.
"""


class GrammarParsers:
    """``first``: a parser before its first token. ``tokenizer``: the one that they were compiled for.

    Copies share the lexer, which keeps all states that any of them was in, up to a limit. So an answer could come to it
    for what others were, or for what was drafted.
    """

    def __init__(self, compile_grammar: Callable[[], LLMatcher], tokenizer: LLTokenizer) -> None:
        self._compile = compile_grammar
        self.tokenizer = tokenizer
        self._answers = itertools.count()
        self.first = compile_grammar()
        self._masks, self._served = 0, set[int]()

    def new_answer(self) -> int:
        """The number of another answer that takes copies."""
        return next(self._answers)

    def made_mask(self, answer: int) -> None:
        """Say that a copy of the first parser made one for this answer."""
        self._masks += 1
        self._served.add(answer)

    def renew(self) -> bool:
        """Compile the grammar anew, if its lexer may be full of what others were; whether it was."""
        if len(self._served) < 2 and self._masks < RENEWED_AFTER:
            return False
        self.first = self._compile()
        self._masks, self._served = 0, set()
        return True
