"""Draws without replacement belong to numbered sequences, and what cannot belong to one is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from spec_sdk.testing import check_tree
from spec_sdk.tree import DraftDistribution, Draw, TreeBuilder

Q_4V = torch.tensor([0.4, 0.3, 0.2, 0.1]).repeat(4, 1)


def draft_distribution() -> DraftDistribution:
    return DraftDistribution(torch.zeros(4), lambda row_V: row_V.softmax(-1))


def numbers(builder: TreeBuilder, node: int = 0) -> list[int | None]:
    return [draw.sequence for draw in builder.build().tree.draws_N[node]]


def test_draws_without_replacement_at_a_node_are_one_sequence() -> None:
    builder, q_V = TreeBuilder(0), Q_4V[0]
    first = builder.add(0, 1, "without_replacement", q_V)
    builder.add(0, 1, "with_replacement", q_V)
    builder.add(0, 3, "chosen")
    builder.add(0, 2, "without_replacement", q_V)
    builder.add(first, 2, "without_replacement", q_V)
    assert numbers(builder) == [0, None, None, 0] and numbers(builder, 1) == [0]
    check_tree(builder.build().tree)


@pytest.mark.parametrize("first", ["lazy", "its q_V", "a view"])
@pytest.mark.parametrize("second", ["lazy", "its q_V", "a view"])
def test_every_form_of_one_distribution_is_the_same(first: str, second: str) -> None:
    lazy = draft_distribution()
    forms: dict[str, torch.Tensor | DraftDistribution] = {"lazy": lazy, "its q_V": lazy.q_V, "a view": lazy.q_V[:]}
    builder = TreeBuilder(0)
    builder.add(0, 1, "without_replacement", forms[first])
    builder.add(0, 2, "without_replacement", forms[second])
    assert numbers(builder) == [0, 0]
    one, other = builder.build().tree.draws_N[0]
    assert one.source is other.source is forms[first]


def test_a_second_sequence_is_asked_for() -> None:
    builder, lazy, q_V = TreeBuilder(0), draft_distribution(), Q_4V[1]
    assert builder.next_sequence(0) == 0
    builder.add(0, 1, "without_replacement", lazy, "one")
    assert builder.next_sequence(0) == 1
    for token in (1, 2):
        builder.add(0, token, "without_replacement", q_V, "other", sequence=7)
    builder.add(0, 3, "without_replacement", lazy, "one")
    assert numbers(builder) == [0, 7, 7, 0] and builder.next_sequence(0) == 8
    assert lazy.made is None, "nothing is worked out to tell distributions apart"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        # rows of equal numbers: copies, as a drafter makes them that works its distribution out anew for every draw
        ((2, "without_replacement", Q_4V[1]), "it comes from another distribution than the draws before it"),
        ((2, "without_replacement", Q_4V[0].clone()), "it comes from another distribution"),
        ((2, "without_replacement", draft_distribution()), "it comes from another distribution"),
        ((2, "without_replacement", Q_4V[0], "b"), "it is drawn by 'b', those before it by ''"),
        (
            (1, "without_replacement", Q_4V[0]),
            "token 1 was drawn before (draws without replacement at node 0, sequence",
        ),
        ((2, "without_replacement", Q_4V[0], "", -1), "needs the number of its sequence, 0 or more, not -1"),
        ((2, "with_replacement", Q_4V[0], "", 0), "only draws without replacement form sequences"),
        ((2, "chosen", None, "", 0), "only draws without replacement form sequences"),
    ],
)
def test_a_draw_that_cannot_belong_to_its_sequence(arguments: Any, fault: str) -> None:
    builder = TreeBuilder(0)
    builder.add(0, 1, "without_replacement", Q_4V[0])
    before = list(builder.draws[0])
    with pytest.raises(ValueError, match=f"^tree node 2: .*{re.escape(fault)}") as refusal:
        builder.add(0, *arguments)
    assert "\n" not in str(refusal.value)
    assert builder.size == 2 and builder.draws[0] == before and builder.next_sequence(0) == 1


def test_a_draw_by_hand_has_a_sequence_if_it_needs_one() -> None:
    with pytest.raises(ValueError, match=r"^tree node 3: a draw without replacement needs the number of its sequence"):
        Draw(3, "without_replacement", Q_4V[0])
    with pytest.raises(ValueError, match=r"^tree node 3: only draws without replacement form sequences"):
        Draw(3, "with_replacement", Q_4V[0], sequence=0)
