"""Merging trees by common prefix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.errors import UserError
from spec_sdk.testing import check_drafter, check_tree
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.merged import MergedConfig, MergedDrafter, merge
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_models import TinyModels

MEMBERS: list[dict[str, Any]] = [
    {"name": "draft_model", "growth": "static", "widths": [2, 1], "children": "with_replacement"},
    {"name": "easyspec", "size": 2, "width": 2},
    {"name": "prompt_lookup"},
]


@st.composite
def small_trees(draw: Any) -> TokenTree:
    builder, q_V = TreeBuilder(7), torch.full((4,), 0.25)
    for _ in range(draw(st.integers(0, 12))):
        drawn = draw(st.booleans())
        kind: Any = "with_replacement" if drawn else "chosen"
        builder.add(draw(st.integers(0, builder.size - 1)), draw(st.integers(0, 3)), kind, q_V if drawn else None)
    return builder.build().tree


def paths(tree: TokenTree) -> dict[tuple[int, ...], list[str]]:
    """Token path → kinds of the draws made there, in order, with the token drawn."""
    return {
        tuple(tree.token_N[n] for n in tree.path_to(node)): [
            f"{draw.kind} {tree.token_N[draw.node]}" for draw in tree.draws_N[node]
        ]
        for node in range(tree.size)
    }


@given(trees=st.lists(small_trees(), min_size=1, max_size=4))
def test_merging_is_the_union_of_paths_with_all_draws_in_order(trees: list[TokenTree]) -> None:
    merged = merge(trees)
    check_tree(merged)
    expected: dict[tuple[int, ...], list[str]] = {}
    for tree in trees:
        for path, draws in paths(tree).items():
            expected.setdefault(path, []).extend(draws)
    assert paths(merged) == expected


def test_trees_of_different_roots_are_refused() -> None:
    with pytest.raises(ValueError, match="different roots"):
        merge([TokenTree.root_only(1), TokenTree.root_only(2)])


def test_sequences_of_two_drafters_stay_apart_even_if_they_share_a_distribution() -> None:
    q_V = torch.full((4,), 0.25)
    trees = []
    for tokens in ((0, 2), (2, 3)):
        builder = TreeBuilder(7)
        for token in tokens:
            builder.add(0, token, "without_replacement", q_V)
        builder.add(0, 1, "without_replacement", q_V.clone(), sequence=5)
        trees.append(builder.build().tree)
    merged = merge(trees)
    check_tree(merged)
    drawn = [(merged.token_N[draw.node], draw.sequence) for draw in merged.draws_N[0]]
    assert drawn == [(0, 0), (2, 0), (1, 5), (2, 6), (3, 6), (1, 11)]


def test_conformance() -> None:
    prompts = [[5], [9, 3, 3, 60, 17, 9, 3]]
    check_drafter(lambda: MergedDrafter(MergedConfig(MEMBERS), TinyModels()), VOCABULARY, prompts=prompts, draws=100)


def test_every_members_paths_are_in_the_tree() -> None:
    members: list[dict[str, Any]] = [{"name": "draft_model", "width": 3}, {"name": "prompt_lookup"}]
    drafter = MergedDrafter(MergedConfig(members), TinyModels())
    request = request_for([5, 6, 7, 8, 5, 6, 7], reference_sampler(SamplingParams()), 0).view
    drafter.start([request])
    (tree,) = drafter.propose([request], [Budget(3)])
    drafters = {draw.drafter for draws in tree.draws_N for draw in draws}
    assert drafters == {"merged/draft_model", "merged/prompt_lookup"}
    assert (7, 8, 5, 6) in paths(tree)
    assert drafter.draft_name == "tiny draft"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "drafter.members: no drafter is listed"),
        ([{"width": 2}], r"drafter.members\[0\]: it has no name"),
        ([{"name": "prompt_lookup"}, {"name": "easyspek"}], "did you mean 'easyspec'"),
        ([{"name": "draft_model", "widht": 2}], "unknown option of drafter 'draft_model', did you mean 'width'"),
        ([{"name": "draft_model", "width": 0}], r"drafter.members\[0\]: drafter.width: 0"),
    ],
)
def test_bad_members_are_named(members: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MergedDrafter(MergedConfig(members), TinyModels())


@pytest.mark.parametrize("nodes", range(2, 12))
def test_members_share_the_nodes(nodes: int) -> None:
    """What one leaves goes to those after it, and none is asked for a tree of the root alone."""
    members: list[dict[str, Any]] = [{"name": "draft_model", "width": 3}, {"name": "prompt_lookup"}] * 2
    drafter = MergedDrafter(MergedConfig(members), TinyModels())
    request = request_for([5, 6, 7, 8, 5, 6, 7], reference_sampler(SamplingParams()), 0).view
    drafter.start([request])
    (tree,) = drafter.propose([request], [Budget(3, nodes)])
    assert 2 <= tree.size <= nodes
    drafters = {draw.drafter for draws in tree.draws_N for draw in draws}
    assert drafters == {f"merged/{name}" for name in ("draft_model", "prompt_lookup")[: 1 + (nodes > 2)]}
