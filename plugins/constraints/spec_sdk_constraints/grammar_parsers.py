"""The parsers of one grammar: each answer's is a copy of the first, which is compiled anew when its lexer is full."""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher

RENEWED_AFTER = 1000
"""Masks that a lexer must have made before it is taken to be full: one that gives up sooner would do so anew."""


class GrammarParsers:
    """``first``: a parser before its first token. ``masks``: those that its copies made.

    Copies share the lexer, which keeps all states that any of them was in, up to a limit. So an answer could come to it
    for what others were, or for what was drafted.
    """

    def __init__(self, compile_grammar: Callable[[], LLMatcher]) -> None:
        self._compile = compile_grammar
        self.first = compile_grammar()
        self.masks = 0

    def renew(self) -> bool:
        """Compile the grammar anew, if its lexer may be full; whether it was."""
        if self.masks < RENEWED_AFTER:
            return False
        self.first, self.masks = self._compile(), 0
        return True
