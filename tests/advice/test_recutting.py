"""Cutting an answer anew for other trees, by hand."""

from __future__ import annotations

import pytest

from spec_sdk.advice.cycles import Cycle, Piece, Shape
from spec_sdk.advice.recutting import DraftedRanks, recut

DEEPEST = 4


def cycle(ranks: list[int], sizes: list[int], tokens: int | None = None, prefix: int = 10, asked: int = 4) -> Cycle:
    return Cycle(prefix, asked, 1 + sum(sizes), tuple(ranks), tuple(sizes), tokens or len(ranks) + 1, 0.0, 0.0)


def cut(probe: list[Cycle], shape: Shape, most_tokens: int | None = None) -> list[Piece]:
    return recut(probe, shape, DEEPEST, DraftedRanks(probe, DEEPEST), most_tokens)


def tokens(pieces: list[Piece]) -> list[float]:
    return [piece.tokens for piece in pieces]


def test_a_shorter_tree_needs_more_cycles_for_the_same_tokens() -> None:
    # three accepted, the fourth rejected: with two levels 3 tokens and 1, with one level 2 and 2
    probe = [cycle([1, 1, 1], [1, 1, 1, 1])]
    assert cut(probe, Shape(4, 1)) == [Piece(10, 4, 4, 5, 4)]
    assert cut(probe, Shape(2, 1)) == [Piece(10, 2, 2, 3, 3), Piece(13, 2, 2, 3, 1)]
    assert cut(probe, Shape(1, 1)) == [Piece(10, 1, 1, 2, 2), Piece(12, 1, 1, 2, 2)]


def test_a_narrower_tree_ends_at_a_rank_above_its_width() -> None:
    probe = [cycle([1, 3, 1], [3, 3, 3, 3])]
    assert cut(probe, Shape(4, 3)) == [Piece(10, 4, 4, 13, 4)]
    assert cut(probe, Shape(4, 2)) == [Piece(10, 4, 4, 9, 2), Piece(12, 4, 4, 9, 2)]


def test_a_token_is_kept_only_where_the_level_had_room_for_its_rank() -> None:
    # rank 2 in a level of three; behind a new root it would be in the first level, which had one node
    probe = [cycle([1, 2], [1, 3, 3, 3])]
    assert [(piece.nodes, piece.tokens) for piece in cut(probe, Shape(1, 3))] == [(2, 2), (2, 1)]
    probe = [cycle([1, 1, 2], [1, 3, 3, 3])]
    assert [(piece.nodes, piece.tokens) for piece in cut(probe, Shape(1, 3))] == [(2, 2), (2, 1), (2, 1)]


def test_a_drafter_that_says_nothing_makes_plain_steps() -> None:
    assert cut([cycle([], [])], Shape(4, 1)) == [Piece(10, 4, 0, 1, 1)]
    # and what followed those that it had to say was none of them
    assert cut([cycle([1, 1], [1, 1])], Shape(1, 1)) == [Piece(10, 1, 1, 2, 2), Piece(12, 1, 1, 2, 1)]


def test_budgets_end_with_the_answer() -> None:
    # all would be accepted. Of 5 tokens a tree of 4 levels is granted 4, behind it one of 2 is granted 1, and 1 none
    probe = [cycle([1] * 4, [1] * 4), cycle([1, 1, 1], [1, 1, 1], asked=3, prefix=15)]
    assert cut(probe, Shape(2, 1), 9) == [Piece(10 + 3 * i, 2, 2, 3, 3) for i in range(3)]
    assert cut(probe, Shape(3, 1), 9) == [Piece(10, 3, 3, 4, 4), Piece(14, 3, 3, 4, 4), Piece(18, 0, 0, 1, 1)]
    # an answer that ended by itself was granted more, and is cut off
    assert cut(probe, Shape(3, 1), 20) == [Piece(10, 3, 3, 4, 4), Piece(14, 3, 3, 4, 4), Piece(18, 3, 3, 4, 1)]


def test_a_token_that_was_not_asked_for_is_had_as_often_as_others_like_it() -> None:
    # behind 4 accepted ones: the fourth was had in 2 of 3 cycles that drafted it behind 3 others
    probe = [
        cycle([1, 1, 1, 1], [1, 1, 1, 1]),
        cycle([1, 1, 1, 1], [1, 1, 1, 1], prefix=15),
        cycle([1, 1, 1], [1, 1, 1, 1], prefix=20),
        cycle([], [1, 1, 1, 1], prefix=24),
    ]
    ranks = DraftedRanks(probe, DEEPEST)
    assert ranks.chance(4, 1, 0) == ranks.chance(3, 1, 0) == pytest.approx(2 / 3)
    assert ranks.chance(0, 1, 0) == 3 / 4
    # chains of two: 3 tokens, then places 3 and 4, of which the second is open
    pieces = cut(probe, Shape(2, 1))
    assert [(p.prefix, p.tokens, p.share) for p in pieces[:2]] == [(10, 3, 1), (13, pytest.approx(2 + 2 / 3), 1)]
    shares = {piece.prefix: piece.share for piece in pieces}
    assert [shares[15], shares[16]] == pytest.approx([1 / 3, 2 / 3])
    assert sum(piece.share * piece.tokens for piece in pieces) == pytest.approx(15)


def test_smaller_trees_answered_their_part_of_the_text_too() -> None:
    # a chain of one between two deep ones: its token behind the accepted one is open, here never had
    probe = [cycle([1], [1, 1, 1, 1]), cycle([1], [1], asked=1, prefix=12), cycle([], [1, 1, 1, 1], prefix=14)]
    assert cut(probe, Shape(4, 1)) == [
        Piece(10, 4, 4, 5, 2), Piece(12, 4, 4, 5, 2), Piece(14, 4, 4, 5, 1),
    ]  # fmt: skip
    # what one node missed, a second one would have had in one of two cycles that drafted it
    wide = [cycle([2], [2] * 4), cycle([], [2] * 4, prefix=12), cycle([], [1], asked=1, prefix=13), cycle([], [2] * 4)]
    assert DraftedRanks(wide, DEEPEST).chance(0, 2, 1) == pytest.approx(1 / 3)
    assert tokens(cut(wide, Shape(1, 2)))[:3] == [2, 1, pytest.approx(1 + 1 / 3)]
    assert tokens(cut(wide, Shape(1, 1))) == [1, 1, 1, 1, 1]


def test_nothing_is_known_of_a_token_where_nothing_was_drafted() -> None:
    assert DraftedRanks([cycle([], [])], DEEPEST).chance(0, 1, 0) == 0.0
