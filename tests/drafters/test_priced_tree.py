"""Trees of chosen tokens keep the nodes that are worth what they cost the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.priced_tree import worth_its_price
from tests.drafters.test_proposals import drafter_of, request


def tree() -> TokenTree:
    """0.6 and 0.3 below the root, 0.5 below the first: 0.3 altogether, and 0.1 below the second: 0.03."""
    built = TreeBuilder(7)
    first = built.add(0, 1, "chosen", drafter="one", probability=0.6)
    second = built.add(0, 2, "chosen", drafter="one", probability=0.3)
    built.add(first, 3, "chosen", drafter="one", probability=0.5)
    built.add(second, 4, "chosen", drafter="one", probability=0.1)
    return built.build().tree


@pytest.mark.parametrize(
    ("node_costs", "tokens"),
    [
        ((), (7, 1, 3, 2, 4)),
        ((0.0, 0.01, 0.02, 0.03, 0.04), (7, 1, 3, 2, 4)),
        ((0.0, 0.1, 0.2, 0.3, 0.4), (7, 1, 3, 2)),
        ((0.0, 0.31, 0.62, 0.93, 1.24), (7, 1)),
        ((0.0, 0.7, 1.4, 2.1, 2.8), (7,)),
        # the first node alone is not worth it, three together are
        ((0.0, 0.7, 0.7, 0.7, 1.4), (7, 1, 3, 2)),
    ],
)
def test_the_nodes_with_the_largest_gain_are_kept(node_costs: tuple[float, ...], tokens: tuple[int, ...]) -> None:
    kept = worth_its_price(tree(), node_costs)
    assert kept.token_N == tokens
    assert all(draw.drafter == "one" and draw.probability for draws in kept.draws_N for draw in draws)


def test_draws_and_tokens_without_a_probability_stay() -> None:
    built = TreeBuilder(7)
    built.add(0, 1, "with_replacement", torch.tensor([0.5, 0.5]))
    dear = (0.0, 9.0, 9.0, 9.0)
    assert worth_its_price(built.build().tree, dear).size == 2
    assert worth_its_price(TokenTree.chain(7, [1, 2]), dear).size == 3


@pytest.mark.parametrize("options", [{"growth": "beam", "width": 2}, {"growth": "dynamic", "width": 2}])
def test_a_draft_models_trees_go_by_prices(options: dict[str, Any]) -> None:
    sizes = []
    for price in (0.0, 0.02, 9.0):
        asked, drafter = request([1, 7, 9, 11, 30]), drafter_of(**options)
        drafter.start([asked.view])
        costs = tuple(price * n for n in range(12))
        (found,) = drafter.propose([asked.view], [Budget(3, 12, node_costs=costs)])
        sizes.append(found.size)
    assert sizes[0] > sizes[1] > sizes[2] == 1
