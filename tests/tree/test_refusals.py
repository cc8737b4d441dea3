"""A tree that is none is refused where it is built, and one that breaks its budget where it is handed over."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Policy, Request, SamplingParams, Verdict
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import PluginFault
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.pipeline import check_wishes
from spec_sdk.testing import TableModel
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.tree import DraftDistribution, Draw, TokenTree, TreeBuilder
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_decoder import tiny_decoder

SOUND: dict[str, Any] = {
    "token_N": (1, 0, 3, 2),
    "parent_N": (-1, 0, 1, 0),
    "depth_N": (0, 1, 2, 1),
    "end_N": (4, 3, 3, 4),
    "draws_N": ((Draw(1, "chosen"), Draw(3, "chosen")), (Draw(2, "chosen"),), (), ()),
}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"parent_N": (-1, 2, 1, 0)}, "tree node 1: it lies on a cycle of parents, 1 → 2 → 1"),
        ({"parent_N": (-1, 1, 1, 0)}, "tree node 1: it lies on a cycle of parents, 1 → 1"),
        ({"parent_N": (-1, 3, 1, 2)}, "tree node 1: it lies on a cycle of parents, 1 → 3 → 2 → 1"),
        ({"parent_N": (-1, 3, 3, 2)}, "tree node 1: it comes before its parent 3"),
        ({"parent_N": (-1, 0, 3, 0)}, "tree node 2: it comes before its parent 3"),
        ({"parent_N": (-1, 0, 4, 0)}, "tree node 2: its parent 4 does not exist (the tree has 4 nodes)"),
        ({"parent_N": (-1, 0, -1, 0)}, "tree node 2: its parent -1 does not exist (the tree has 4 nodes)"),
        ({"parent_N": (0, 0, 1, 0)}, "tree node 0 is the root: its parent is 0, not -1"),
        ({"depth_N": (1, 2, 3, 2)}, "tree node 0 is the root: its parent is -1, not -1, or its depth 1, not 0"),
        ({"depth_N": (0, 1, 1, 1)}, "tree node 2 has depth 1, its parent 1 has 1"),
        ({"end_N": (4, 4, 3, 4)}, "tree node 1 has 1 descendants, so its end is 3, not 4"),
        ({"end_N": (5, 3, 3, 4)}, "tree node 0 has 3 descendants, so its end is 4, not 5"),
        ({"end_N": (4, 3, 3)}, "tree node 3: end_N has 3 entries, token_N has 4"),
        ({"token_N": (1, 0, -3, 2)}, "tree node 2: token id -3 is negative"),
        ({"token_N": (1, 0, 3.0, 2)}, "tree node 2: token id 3.0 is no int"),
        ({"token_N": (1, True, 3, 2)}, "tree node 1: token id True is no int"),
        # breadth first: every parent comes before its children, but subtrees are torn apart
        (
            {"parent_N": (-1, 0, 0, 1), "depth_N": (0, 1, 1, 2), "end_N": (4, 3, 3, 4)},
            "tree node 3: not in pre-order, its subtree reaches beyond that of its parent 1",
        ),
        (dict.fromkeys(SOUND, ()), "a token tree has a root at least: token_N is empty"),
    ],
)
def test_arrays_that_are_no_tree(changed: dict[str, Any], fault: str) -> None:
    TokenTree(**SOUND)
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}") as refusal:
        TokenTree(**SOUND | changed)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((1, 2, "chosen"), "parent 1 does not exist yet (the tree has 1 node)"),
        ((-1, 2, "chosen"), "parent -1 does not exist yet"),
        ((0, -2, "chosen"), "token id -2 is negative"),
        ((0, 2, "with_replacement"), "a drawn token needs its q_V"),
        ((0, 2, "chosen", torch.ones(3)), "a chosen one has none"),
        ((0, 2, "choosen"), "unknown kind 'choosen', did you mean 'chosen'?"),
        ((0, 2, "choosen", torch.ones(3) / 3), "unknown kind 'choosen', did you mean 'chosen'?"),
        ((0, 3, "with_replacement", torch.ones(3) / 3), "token 3 lies outside its q_V of 3 tokens"),
    ],
)
def test_a_node_that_makes_no_sense(arguments: Any, fault: str) -> None:
    """A cycle, or a parent after its child, would need a parent that does not exist yet."""
    builder = TreeBuilder(0)
    with pytest.raises(ValueError, match=f"^tree node 1: .*{re.escape(fault)}"):
        builder.add(*arguments)
    assert builder.size == 1 and builder.draws == [[]]


def test_a_node_more_than_the_builder_may_have() -> None:
    builder = TreeBuilder(0, max_nodes=3)
    q_V = torch.ones(9) / 9
    first = builder.add(0, 5, "with_replacement", q_V)
    builder.add(first, 6, "chosen")
    assert builder.room == 0
    assert builder.add(0, 5, "with_replacement", q_V) == first
    with pytest.raises(ValueError, match="^tree node 3: the tree may have 3 nodes, the root included$"):
        builder.add(0, 7, "chosen")
    assert builder.build().tree.size == 3


class Fixed(Drafter):
    """Proposes one tree, whatever it is asked for."""

    name = "stubborn"

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return self.tree


class Grants(Policy):
    name = "grants"

    def budget(self, request: Request) -> Budget:
        budget: Budget = self.config
        return budget


def first_tokens(drafter: Drafter, budget: Budget, target: Any = None, prompt: int = 1) -> list[int]:
    request = request_for([prompt], reference_sampler(SamplingParams()), 0, max_new_tokens=20)
    scheduler = Scheduler(target or TableModel(4, 0), drafter, MultiStep(None), Grants(budget))
    return next(scheduler.run(request))


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        (Budget(1, 8), "tree node 2 has depth 2, the budget is a depth of 1"),
        (Budget(2, 3), "tree node 3: the tree has 4 nodes, the budget is 3 with the root"),
        # a tree of two nodes has no room for a path of two
        (Budget(5, 2), "tree node 2 has depth 2, the budget is a depth of 1"),
    ],
)
def test_a_tree_over_its_budget(budget: Budget, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^drafter 'stubborn': {fault}$"):
        first_tokens(Fixed(TokenTree(**SOUND)), budget)


def test_a_tree_within_its_budget_and_one_of_another_root() -> None:
    assert first_tokens(Fixed(TokenTree(**SOUND)), Budget(2, 4))
    assert first_tokens(Fixed(TokenTree(**SOUND)), Budget(5, 1)), "a budget of the root alone is a plain step"
    with pytest.raises(ValueError, match="^drafter 'stubborn': tree node 0 is token 1, the pending token is 2$"):
        first_tokens(Fixed(TokenTree(**SOUND)), Budget(2, 4), prompt=2)


def test_a_token_that_the_model_does_not_have() -> None:
    decoder = tiny_decoder("smollm", 0)
    outside = decoder.config.vocab_size
    target = Session(TorchExecutor(decoder, Ops()))
    refusal = f"^drafter 'stubborn': tree node 2: token {outside} lies outside the vocabulary of {outside}$"
    with pytest.raises(ValueError, match=refusal):
        first_tokens(Fixed(TokenTree.chain(1, [3, outside, 4])), Budget(3), target)
    assert first_tokens(Fixed(TokenTree.chain(1, [3, outside - 1, 4])), Budget(3), target)


@pytest.mark.parametrize("number", [np.int64, torch.tensor, np.uint8])
def test_tokens_of_other_libraries_become_ints(number: Any) -> None:
    tree = TokenTree.chain(number(1), [number(0), number(3)])
    assert tree.token_N == (1, 0, 3) and {type(token) for token in tree.token_N} == {int}


@pytest.mark.parametrize("number", [np.int64, torch.tensor, np.uint8])
def test_whole_numbers_of_a_budget_and_a_verdict_become_ints(number: Any) -> None:
    budget, tree = Budget(number(2), number(3)), TokenTree.chain(1, [0])
    verdict = Verdict([0], number(3), tree)
    assert {type(whole) for whole in (budget.depth, budget.nodes, verdict.next_token)} == {int}
    assert budget == Budget(2, 3) and verdict == Verdict([0], 3, tree)
    assert first_tokens(Fixed(tree), Budget(number(1)))


def test_a_draw_without_its_drafters_name_is_the_engines_drafters() -> None:
    builder = TreeBuilder(1)
    builder.add(0, 2, "with_replacement", torch.tensor([0.5, 0.5, 0.0, 0.0]))
    fault = "tree node 1: drafter 'stubborn' says that it drew token 2 from a distribution in which that token has"
    request = request_for([1], reference_sampler(SamplingParams(temperature=1.0)), 0)
    scheduler = Scheduler(TableModel(4, 0), Fixed(builder.build().tree), MultiStep(None), Grants(Budget(1)))
    with pytest.raises(PluginFault, match=f"^{fault}"):
        next(scheduler.run(request))


@pytest.mark.parametrize("token", [2.0, "2", None, torch.tensor([1, 2]), np.float32(2)])
def test_what_is_no_token(token: Any) -> None:
    with pytest.raises(ValueError, match="^tree node 1: token id .* is no whole number$"):
        TokenTree.chain(1, [token])


@pytest.mark.parametrize(
    ("draw", "fault"),
    [
        (Draw(2, "chosen"), "tree node 0: a draw made there is of node 2, which is no child of it"),
        (Draw(7, "chosen"), "tree node 0: a draw made there is of node 7, which is no child of it"),
        (Draw(0, "chosen"), "tree node 0: a draw made there is of node 0, which is no child of it"),
        (Draw(1, "with_replacement"), "tree node 1: a drawn token needs its q_V, a chosen one has none"),
        (Draw(1, "chosen", torch.ones(4) / 4), "tree node 1: a drawn token needs its q_V, a chosen one has none"),
        (Draw(1, "guessed", torch.ones(4) / 4), "tree node 1: its draw is 'guessed', which is none of chosen, "),  # type: ignore[arg-type]
        (Draw(1, "with_replacement", [0.25] * 4), "tree node 1: its q_V is of type list, and no tensor"),  # type: ignore[arg-type]
        (Draw(1, "with_replacement", torch.ones(3) / 3), "tree node 1: its q_V is torch.float32 of shape [3], it must"),
        (Draw(1, "with_replacement", torch.ones(5) / 5), "tree node 1: its q_V is torch.float32 of shape [5], it must"),
        (Draw(1, "with_replacement", torch.ones(1, 4) / 4), "tree node 1: its q_V is torch.float32 of shape [1, 4], "),
        (
            Draw(1, "with_replacement", torch.ones(4).long()),
            "tree node 1: its q_V is torch.int64 of shape [4], it must",
        ),
        (
            Draw(1, "with_replacement", (torch.ones(4) / 4).requires_grad_()),
            "tree node 1: its q_V requires a gradient; draft under torch.no_grad()",
        ),
        (
            Draw(1, "with_replacement", DraftDistribution(torch.zeros(6), lambda logits_V: logits_V.softmax(-1))),
            "tree node 1: its q_V is torch.float32 of shape [6], it must",
        ),
    ],
)
def test_draws_that_no_rule_can_judge(draw: Draw, fault: str) -> None:
    tree = TokenTree(**SOUND | {"draws_N": ((draw, Draw(3, "chosen")), (Draw(2, "chosen"),), (), ())})
    with pytest.raises(PluginFault, match="^" + re.escape(f"drafter 'stubborn': {fault}")):
        first_tokens(Fixed(tree), Budget(2, 4))


@pytest.mark.parametrize(
    ("wish", "fault"),
    [
        ({"taps": (0, 3)}, None),
        ({"taps": (4,)}, "drafter 'stubborn': its taps have layer 4; the target's are 0 … 3"),
        ({"taps": (-1,)}, "drafter 'stubborn': its taps have layer -1; the target's are 0 … 3"),
        ({"target_top_k": -1}, "drafter 'stubborn': target_top_k is a whole number of 0 or more, not -1"),
    ],
)
def test_what_a_drafter_may_want_of_the_target(wish: dict[str, Any], fault: str | None) -> None:
    drafter = Fixed(TokenTree(**SOUND))
    vars(drafter).update(wish)
    with pytest.raises(PluginFault, match=f"^{re.escape(fault)}$") if fault else contextlib.nullcontext():
        check_wishes(drafter, 3)
