"""Strategies of layer-parallel drafting."""

from __future__ import annotations

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.layer_groups import check_groups, describe_groups, easyspec_groups, even_groups, resolve_groups
from tests.support.configured import config_of


@pytest.mark.parametrize(
    ("layers", "size", "listed"),
    [
        (32, 2, "0, 1-2, 3-4, …, 29-30, 31"),
        (32, 3, "0, 1-3, 4-6, …, 25-27, 28-30, 31"),
        (32, 4, "0, 1-3, 4-7, 8-11, …, 24-27, 28-30, 31"),
        (32, 5, "0, 1-3, 4-8, 9-13, …, 24-28, 29-30, 31"),
        (28, 4, "0, 1-3, 4-7, 8-11, …, 24-26, 27"),
    ],
)
def test_the_papers_table_6(layers: int, size: int, listed: str) -> None:
    """Against the rows as the paper prints them; what its dots stand for are groups of N."""
    front, back = listed.split(", …, ")
    groups = easyspec_groups(layers, size)
    ours = describe_groups(groups).split(", ")
    heads, tails = front.split(", "), back.split(", ")
    assert ours[: len(heads)] == heads and ours[-len(tails) :] == tails
    assert all(len(group) == size for group in groups[len(heads) : -len(tails)])
    assert check_groups(groups, layers, "test") == groups


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 16, 20, 24, 28, 30, 32])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 40])
def test_every_depth_and_size_has_groups_with_the_ends_alone(layers: int, size: int) -> None:
    groups = resolve_groups("easyspec", size, layers, "drafter")
    assert check_groups(groups, layers, "test") == groups
    assert groups[0] == [0] and groups[-1] == [layers - 1]
    assert all(len(group) <= size for group in groups)


@pytest.mark.parametrize(
    ("layers", "size", "described"),
    [
        (30, 4, "0, 1-4, 5-8, 9-12, 13-16, 17-20, 21-24, 25-28, 29"),
        (24, 4, "0, 1-3, 4-7, 8-11, 12-15, 16-19, 20-22, 23"),
        (16, 4, "0, 1-3, 4-7, 8-11, 12-14, 15"),
        (32, 4, "0, 1-3, 4-7, 8-11, 12-15, 16-19, 20-23, 24-27, 28-30, 31"),
        (12, 4, "0, 1-3, 4-7, 8-10, 11"),
        (11, 7, "0, 1-4, 5-9, 10"),
    ],
)
def test_the_rule_puts_the_short_groups_at_the_ends(layers: int, size: int, described: str) -> None:
    assert describe_groups(even_groups(layers, size)) == described


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0], [2, 1], [3]], "drafter.groups: layer 2 stands where layer 1"),
        ([[0], [1]], "drafter.groups: the groups list 2 layers, the draft model has 4"),
        ([[0, 1, 2, 3], []], "4 layers"),
        ([], "list 0 layers"),
        ("easispec", "drafter.groups: unknown strategy 'easispec', did you mean 'easyspec'?"),
        ([0, 1, 2, 3], r"drafter.groups: \[0, 1, 2, 3\] must be 'easyspec' or groups of layers such as"),
        ([[0], [1, "2"], [3]], "must be 'easyspec' or groups"),
        (4, "drafter.groups: 4 must be 'easyspec'"),
    ],
)
def test_bad_groups_are_refused(groups: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_groups(groups, 4, 4, "drafter")


def test_a_bad_size_is_refused() -> None:
    with pytest.raises(UserError, match=r"^drafter.size: 0 must be 1 \(plain drafting\) or more$"):
        config_of("drafter", "easyspec", size=0)
