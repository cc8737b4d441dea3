"""One parser that walks a tree gives the masks of parsers that are made for each path.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from spec_sdk.contracts import Matcher
from spec_sdk.errors import ConstraintLimit, UserError
from spec_sdk_constraints.grammar_matcher import GrammarMatcher
from spec_sdk_constraints.grammar_parsers import GrammarParsers
from spec_sdk_constraints.mask_tree import only_token
from spec_sdk_constraints.regex import RegexConfig, RegexConstraint
from tests.support.spelling_tokenizer import AB, END, VOCABULARY, A, B, SpellingTokenizer, spelt

TOKENIZER: Any = SpellingTokenizer()
PATTERN = "(ab|ba){1,4}|b{3}"


def matcher(pattern: str = PATTERN) -> Matcher:
    return RegexConstraint(RegexConfig(pattern)).compile(TOKENIZER, VOCABULARY)


def left(of: Matcher, answer: list[int], path: list[int], width: int = VOCABULARY) -> list[int]:
    logits_1V = torch.zeros(1, width)
    of.apply(logits_1V, answer, [path])
    return logits_1V[0].isfinite().nonzero().flatten().tolist()


def may_go_on(text: str) -> bool:
    """Whether some text that the pattern matches begins with this one."""
    words = [w for n in range(1, 5) for w in _words(n)] + ["bbb"]
    return any(word.startswith(text) for word in words)


def _words(pairs: int) -> list[str]:
    return [""] if not pairs else [pair + rest for pair in ("ab", "ba") for rest in _words(pairs - 1)]


def test_masks_are_those_of_the_language() -> None:
    first = matcher()
    for text in ([], [A], [B], [AB], [A, B], [AB, B], [B, B], [B, A, AB], [B, B, B], [AB, AB, AB, AB]):
        so_far = spelt(text)
        expected = [token for token in (A, B, AB) if may_go_on(so_far + spelt([token]))]
        expected += [END] * (re.fullmatch(PATTERN, so_far) is not None)
        assert left(first.begin(), [], text) == expected == left(first.begin(), text, []), so_far
    assert left(first.begin(), [], [AB, END]) == [END]
    # outside of the language a row stays as it is
    assert left(first.begin(), [], [AB, B, B]) == [A, B, AB, END]


def test_walking_back_and_forth() -> None:
    """An answer that grows, and trees behind it in any order: as if each path had a parser of its own."""
    rng = random.Random(3)
    first = matcher()
    for _ in range(12):
        used, answer = first.begin(), list[int]()
        while END not in answer:
            for _ in range(6):
                path = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(4))]
                fresh = first.begin()
                assert left(used, answer, path) == left(fresh, [], [*answer, *path])
                for token in range(VOCABULARY):
                    assert used.allows(answer, path, token) == first.begin().allows([], [*answer, *path], token)
                forced = used.forced(answer, path)
                assert forced == first.begin().forced([*answer], path)
                assert all(used.allows(answer, [*path, *forced[:i]], token) for i, token in enumerate(forced))
            # at times several tokens at once, as a cycle commits them
            for _ in range(rng.randrange(1, 3)):
                answer.append(rng.choice(left(first.begin(), answer, [])))
                if answer[-1] == END:
                    break
        assert re.fullmatch(PATTERN, spelt(answer[:-1]))


def test_an_answer_that_begins_anew() -> None:
    used = matcher()
    assert left(used, [AB, AB], []) == left(matcher(), [AB, AB], [])
    assert left(used, [], []) == left(matcher(), [], [])
    assert used.begin() is not used
    with pytest.raises(UserError, match="constraint: the regular expression has no answer with the tokens"):
        left(used, [AB, B, B], [])


def test_rows_of_other_widths() -> None:
    """A draft model may have fewer tokens than the target, or rows that only pad it."""
    assert left(matcher(), [], [], width=2) == [A, B]
    assert left(matcher(), [], [], width=9) == [A, B, AB]
    logits_NV = torch.zeros(3, VOCABULARY, dtype=torch.bfloat16)
    matcher().apply(logits_NV, [], [[], [A, A], [A]])
    assert [row.isfinite().nonzero().flatten().tolist() for row in logits_NV] == [[A, B, AB], [A, B, AB, END], [B]]


def test_the_only_token() -> None:
    def mask(*tokens: int) -> Any:
        bits = torch.zeros(64, dtype=torch.uint8)
        bits[list(tokens)] = 1
        import numpy as np

        return np.packbits(bits.numpy(), bitorder="little")

    assert [only_token(mask(token)) for token in (0, 7, 8, 63)] == [0, 7, 8, 63]
    assert only_token(mask()) is only_token(mask(3, 4)) is only_token(mask(3, 40)) is None


def limited(states: int, compiled: list[int]) -> GrammarMatcher:
    """Words of a and b whose thirteenth letter from the end is an a: 2^13 states of a lexer, which takes so many."""
    known = LLTokenizer(TOKENIZER.to_json(), n_vocab=VOCABULARY, eos_token=[END])
    limits = LLParserLimits(max_lexer_states=states)

    def compile_grammar() -> LLMatcher:
        compiled.append(states)
        return LLMatcher(known, LLMatcher.grammar_from_regex("[ab]*a[ab]{12}"), log_level=0, limits=limits)

    return GrammarMatcher(GrammarParsers(compile_grammar, known), frozenset({END}), 4, "regex")


def test_a_lexer_that_others_filled_is_made_anew() -> None:
    """Answers one after the other and side by side, with drafted paths that are not taken."""
    rng, compiled = random.Random(5), list[int]()
    first, unlimited = limited(3000, compiled), matcher("[ab]*a[ab]{12}")
    for _ in range(6):
        answers = [(list[int](), first.begin(), unlimited.begin()) for _ in range(2)]
        for _ in range(300):
            for text, kept, expected in answers:
                path = [rng.choice((A, B, AB)) for _ in range(rng.randrange(6))]
                assert left(kept, text, path) == left(expected, text, path)
                text.append(rng.choice((A, B)))
    assert 2 < len(compiled) < 12


def until_limit(answer: GrammarMatcher, rng: random.Random) -> int:
    """Tokens of an answer of random letters when its grammar cannot be followed any further."""
    text = list[int]()
    with pytest.raises(ConstraintLimit, match="too many states"):
        for _ in range(400):
            left(answer, text, [])
            text.append(rng.choice((A, B)))
    return len(text)


def test_a_lexer_that_one_answer_fills_is_a_limit() -> None:
    """Its own, and no reason to compile the grammar anew."""
    compiled = list[int]()
    answer = limited(200, compiled).begin()
    assert until_limit(answer, random.Random(5)) > 50
    with pytest.raises(ConstraintLimit, match="too many states"):
        left(answer, [A, B] * 60, [])
    assert len(compiled) == 1


def test_a_lexer_that_one_other_answer_filled_is_made_anew() -> None:
    """The same answer comes to the same limit after others as before them, at one compilation for each."""
    compiled = list[int]()
    first = limited(200, compiled)
    lengths = [until_limit(first.begin(), random.Random(5)) for _ in range(4)]
    assert len(set(lengths)) == 1 and len(compiled) == 4
