"""The tokens of a text that a grammar leaves no choice about.

llguidance spells such a text with the tokenizer, which takes the text of a special token for the token itself. The
grammar does not accept that one: it asks for the text.
"""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

MARK = b"\xff"
"""What stands for a special token that a grammar names, as in ``\\xff[2]``; no text has this byte."""


def forced_tokens(parser: LLMatcher, tokenizer: LLTokenizer) -> list[int]:
    """What must come next, by ordinary tokens where a special one's text is asked for; up to there where others come
    before it.
    """
    spelt = parser.compute_ff_tokens()
    if not any(map(tokenizer.is_special_token, spelt)):
        return spelt
    left = parser.compute_ff_bytes()
    for index, token in enumerate(spelt):
        named = b"%b[%d]" % (MARK, token)
        written = named if tokenizer.is_special_token(token) else tokenizer.decode_bytes([token])
        if not left.startswith(written):
            # one token of the text is enough: what it leaves is no special token's
            return spelt[:index] or tokenizer.greedy_tokenize(left.partition(MARK)[0].decode(errors="ignore"))[:1]
        left = left[len(written) :]
    return spelt
