"""The suffix automaton against counting by hand, in texts of few tokens, where runs repeat in every way."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from spec_sdk_drafters.suffix_automaton import SuffixAutomaton


def followers(text: Sequence[int], run: Sequence[int]) -> Counter[int]:
    """Token → how often it followed ``run`` in ``text``."""
    starts = range(len(text) - len(run))
    return Counter(text[start + len(run)] for start in starts if list(text[start : start + len(run)]) == list(run))


def longest_known(text: Sequence[int], path: Sequence[int], longest: int, followed: bool) -> int:
    """Tokens of the longest run at the end of ``path`` that is in ``text``, followed by something if asked."""
    for length in range(min(longest, len(path)), 0, -1):
        run = list(path[len(path) - length :])
        places = [start for start in range(len(text) - length + 1) if list(text[start : start + length]) == run]
        if any(start + length < len(text) for start in places) or (places and not followed):
            return length
    return 0


@pytest.mark.parametrize("longest", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 4])
def test_runs_and_followers_are_those_that_counting_finds(alphabet: int, longest: int) -> None:
    choose = random.Random(alphabet * 100 + longest)
    for _ in range(12):
        automaton, text = SuffixAutomaton(longest), list[int]()
        for _ in range(choose.randint(1, 32)):
            text.append(choose.randrange(alphabet))
            automaton.extend(text[-1:])
            end = automaton.end()
            assert end.length == longest_known(text, text, longest, followed=True)
            for run in automaton.shorter(end):
                assert automaton.followers(run.state) == followers(text, text[len(text) - run.length :])
            # tokens that may follow, but are not in the text
            path, cursor = list(text), end
            for _ in range(4):
                path.append(choose.randrange(alphabet))
                cursor = automaton.advance(cursor, path[-1])
                assert cursor.length == longest_known(text, path, longest, followed=False)
                if cursor.length:
                    assert automaton.followers(cursor.state) == followers(text, path[len(path) - cursor.length :])


def test_one_token_repeated_takes_linear_time() -> None:
    """Every run of it occurs everywhere, so that counting all of them would take quadratic time."""
    automaton = SuffixAutomaton(24)
    began = time.perf_counter()
    automaton.extend([7] * 50_000)
    assert time.perf_counter() - began < 20
    assert automaton.end().length == 24
