"""A tree that the device has closed before it is read is the one that is proposed, under all growths and prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, RequestState, SamplingParams
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.ops import host_reads
from spec_sdk.ops.grown_paths import ClosedTrees
from spec_sdk.registry import Registry
from spec_sdk.testing import StaticOps, repeated
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters.growing_drafter import LEAST_ROOM, GrowingDrafter
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from tests.draft_heads.test_drafter import SIZES, Served
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_heads import write_eagle3
from tests.support.tiny_models import TinyModels

BEAM = {"growth": "beam", "width": 3}
DYNAMIC = {"growth": "dynamic", "width": 3, "max_nodes": 8}
CHEAP = tuple(0.0011 * n for n in range(40))
DEAR = (0.0, 0.0265, 0.0515, 0.0752, 0.0762, 0.0775, 0.079, 0.081, 0.083, 0.2)
CASES: dict[str, tuple[dict[str, Any], Budget]] = {
    "beam": (BEAM, Budget(4)),
    "beam, few nodes": (BEAM, Budget(4, 8)),
    "auto": ({"width": 4, "children": "top_k"}, Budget(3)),
    "chain": ({"growth": "beam", "width": 1, "children": "top_k"}, Budget(4, level_cost=1e-9)),
    "one level": (DYNAMIC, Budget(1)),
    "dynamic": (DYNAMIC, Budget(4)),
    "dynamic, few nodes": (DYNAMIC, Budget(4, 6)),
    "more than are offered": ({**DYNAMIC, "max_nodes": 60}, Budget(3)),
    "levels at a price": ({**DYNAMIC, "max_nodes": 20}, Budget(4, level_cost=0.0042)),
    "beam, levels at a price": (BEAM, Budget(4, level_cost=0.0042)),
    "cheap nodes": (DYNAMIC, Budget(4, node_costs=CHEAP)),
    "dear nodes": (DYNAMIC, Budget(4, node_costs=DEAR)),
    "beam, all at a price": (BEAM, Budget(4, 9, node_costs=CHEAP, level_cost=0.0042)),
    "all at a price": ({**DYNAMIC, "max_nodes": 20}, Budget(5, 16, node_costs=CHEAP, level_cost=0.0042)),
    "a chain at once": ({"growth": "beam", "width": 1, "children": "top_k"}, Budget(4)),
    "a drawn chain": ({"growth": "beam", "width": 1}, Budget(4, node_costs=DEAR, level_cost=0.5)),
    "drawn paths": ({"width": 3}, Budget(3)),
    "a drawn tree": ({"growth": "static", "widths": [2, 3, 1]}, Budget(3)),
    "six nodes": ({**DYNAMIC, "max_nodes": 20}, Budget(4, node_costs=(0.0,) * 7 + (1.0,) * 20)),
    "no node is worth its price": (DYNAMIC, Budget(3, node_costs=(0.0, 5.0, 9.0))),
}


def made(name: str, options: dict[str, Any], models: TinyModels) -> GrowingDrafter:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": name, **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, GrowingDrafter)
    return drafter


def draft_model(options: dict[str, Any]) -> GrowingDrafter:
    models = TinyModels()
    executor = GraphExecutor(tiny_decoder("smollm", 1), StaticOps(), repeated)
    models._draft = replace(models._draft, executor=executor)
    return made("draft_model", options, models)


def head_in(directory: Path) -> Callable[[dict[str, Any]], GrowingDrafter]:
    checkpoint = write_eagle3(directory, SIZES, eagle_aux_hidden_state_layer_ids=[1, 3, 5])

    def make(options: dict[str, Any]) -> GrowingDrafter:
        models = TinyModels()
        models.ops = StaticOps()
        models.ops.capture = repeated
        return made("eagle", {"checkpoint": str(checkpoint), **options}, models)

    return make


def check_told(drafter: GrowingDrafter, budget: Budget, cycles: int = 5) -> list[int]:
    """The sizes of trees that were told as they are proposed, in cycles with random verdicts."""
    sampler = ExactSampler(ExactConfig(), SamplingParams(temperature=1.0))
    served, told, sizes = Served(drafter, [4, 8, 15, 16, 23], 3, sampler), list[ClosedTrees](), list[int]()
    drafter.trees_told = told.append
    for _ in range(cycles):
        tree = served.cycle(budget)
        closed = told.pop()
        assert not told
        assert closed.are([tree])
        behind_3N = closed.node_B3N[0, :, tree.size :]
        assert not behind_3N.any(), "places behind it hold nothing"
        assert not closed.are([tree, tree]) and not closed.are([])
        # and it looks at every node
        for name in ("token_N", "depth_N", "end_N"):
            arrays = {key: [*getattr(tree, key)] for key in ("token_N", "depth_N", "end_N")}
            arrays[name][-1] += 1
            assert not closed.are([SimpleNamespace(**arrays)]) or tree.size == 1 and name == "token_N"
        sizes.append(tree.size)
    return sizes


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_of_a_draft_model(case: str) -> None:
    options, budget = CASES[case]
    sizes = check_told(draft_model(options), budget)
    if case == "no node is worth its price":
        assert set(sizes) == {1}
    elif budget.level_cost or budget.node_costs:
        assert "chain" in case or case == "six nodes" or len(set(sizes)) > 1, sizes


@torch.no_grad()
@pytest.mark.parametrize("case", ["beam", "dynamic", "all at a price"])
def test_of_a_head(case: str, tmp_path: Path) -> None:
    """Whose tokens are not numbered as the target's are."""
    options, budget = CASES[case]
    check_told(head_in(tmp_path)(options), budget)


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({"growth": "static", "widths": [2, 2], "children": "top_k"}, Budget(3)),
        ({"growth": "dynamic", "width": 1, "max_nodes": 2}, Budget(3)),
        ({"growth": "beam", "width": 1, "children": "top_k"}, Budget(3, node_costs=CHEAP)),
    ],
    ids=["static", "a chain is cut", "a chain at a price"],
)
def test_a_tree_that_may_be_cut_on_the_host_is_not_told(options: dict[str, Any], budget: Budget) -> None:
    def refuse(closed: ClosedTrees) -> None:
        raise AssertionError("told")

    assert Drafter.trees_told is None
    drafter = draft_model(options)
    drafter.trees_told = refuse
    Served(drafter, [4, 8, 15], 3).cycle(budget)


@torch.no_grad()
def test_a_tree_that_is_not_told_has_all_the_room_that_it_is_granted() -> None:
    """A draft model that is not captured is fed level by level."""
    drafter, told = made("draft_model", DYNAMIC | {"max_nodes": 30}, TinyModels()), list[ClosedTrees]()
    drafter.trees_told = told.append
    served = Served(drafter, [4, 8, 15], 3)
    assert served.cycle(Budget(4, node_costs=(0.0, 5.0, 9.0))).size == 1
    assert served.cycle(Budget(4, node_costs=(0.0,) * 64)).size == 31 and not told


class Sure(StaticOps):
    """Gives every node's best child all of its probability, and the others an even share of next to nothing."""

    def top_log_probabilities(self, logits_KV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        logprob_KW, token_KW = super().top_log_probabilities(logits_KV, count)
        logprob_KW[:, 0], logprob_KW[:, 1:] = 0.0, -9.0
        return logprob_KW, token_KW


@torch.no_grad()
@pytest.mark.parametrize("case", ["beam", "dynamic", "dynamic, few nodes", "six nodes", "all at a price"])
def test_of_equally_probable_nodes_both_keep_the_same(case: str) -> None:
    options, budget = CASES[case]
    models = TinyModels()
    executor = GraphExecutor(tiny_decoder("smollm", 1), Sure(), repeated)
    models._draft, models.ops = replace(models._draft, executor=executor), Sure()
    drafter = made("draft_model", options, models)
    served, told = Served(drafter, [4, 8, 15, 16, 23], 3), list[ClosedTrees]()
    drafter.trees_told = told.append
    for _ in range(6):
        tree = served.cycle(budget)
        assert told.pop().are([tree])


@torch.no_grad()
def test_nothing_is_told_where_nobody_asks() -> None:
    for options in (DYNAMIC, {"width": 3}):
        assert Served(draft_model(options), [4, 8, 15], 3).cycle(Budget(3)).size > 1


@torch.no_grad()
def test_under_prices_the_next_tree_has_room_for_twice_as_many_nodes() -> None:
    drafter = draft_model({**DYNAMIC, "max_nodes": 30, "width": 4})
    served, told = Served(drafter, [4, 8, 15, 16, 23], 3), list[ClosedTrees]()
    drafter.trees_told = told.append
    served.cycle(Budget(4, node_costs=DEAR))
    for budget in (Budget(4, node_costs=(0.0,) * 64), Budget(4, node_costs=(0.0,) * 64)):
        last = drafter._sizes[0]
        tree = served.cycle(budget)
        rows = told[-1].node_B3N.shape[2]
        assert last < rows <= max(LEAST_ROOM, 2 * last) and tree.size <= rows
    assert told[0].node_B3N.shape[2] <= len(DEAR)
    drafter.finish([served.request.view])
    assert not drafter._sizes


@torch.no_grad()
def test_prices_may_change() -> None:
    """One capture serves them: they are read when it runs."""
    drafter = draft_model({**DYNAMIC, "max_nodes": 9})
    served, told, sizes = Served(drafter, [4, 8, 15, 16, 23], 3), list[ClosedTrees](), list[int]()
    drafter.trees_told = told.append
    of_model: Any = drafter
    executor = of_model.session.executor
    captures = list[int]()
    for scale in (1.0, 0.0, 30.0, 1.0, 0.5):
        costs = tuple(scale * cost for cost in CHEAP[:4])
        tree = served.cycle(Budget(3, level_cost=1e-9, node_costs=costs))
        assert told[-1].are([tree])
        sizes.append(tree.size)
        captures.append(executor.captures)
    assert {2, 4} <= set(sizes)
    assert len(set(captures[2:])) == 1


@torch.no_grad()
def test_it_is_told_before_it_is_read() -> None:
    drafter, reads = draft_model(DYNAMIC), list[int]()
    drafter.trees_told = lambda closed: reads.append(host_reads.total())
    served = Served(drafter, [4, 8, 15, 16, 23], 3)
    before = host_reads.total()
    served.cycle(Budget(4))
    assert reads == [before] and host_reads.total() == before + 1


@torch.no_grad()
def test_a_level_more_than_was_fed_ends_the_tree() -> None:
    """Under prices a level more is fed than the tree before had; what asks for a second one is told of none."""
    dear, free = Budget(5, level_cost=0.5), Budget(5, level_cost=1e-12)
    depths = list[list[int]]()
    for tells in (True, False):
        drafter, told = draft_model({**BEAM, "children": "top_k"}), list[ClosedTrees]()
        drafter.trees_told = told.append if tells else None
        served = Served(drafter, [4, 8, 15, 16, 23], 3)
        trees = [served.cycle(budget) for budget in (dear, free, free, free)]
        depths.append([tree.depth for tree in trees])
        for closed, tree in zip(told, trees, strict=False):
            assert closed.are([tree])
    assert depths == [[1, 2, 3, 4], [1, 5, 5, 5]]


def two_requests(drafter: GrowingDrafter) -> list[RequestState]:
    """That it has prepared for."""
    sampler = ExactSampler(ExactConfig(), SamplingParams(temperature=1.0))
    states = [request_for(tokens, sampler, 3) for tokens in ([4, 8, 15], [16, 23, 42, 5])]
    for number, state in enumerate(states):
        state.id = state.slot = number
    drafter.start([state.view for state in states])
    return states


@torch.no_grad()
def test_each_of_several_trees_has_as_many_nodes_as_it_is_granted() -> None:
    drafter, told = draft_model({**DYNAMIC, "max_nodes": 20}), list[ClosedTrees]()
    requests = [state.view for state in two_requests(drafter)]
    drafter.trees_told = told.append
    trees = drafter.propose(requests, [Budget(2, 7), Budget(3, 99)])
    assert [tree.size for tree in trees] == [7, 21] and told[0].are(trees)


@torch.no_grad()
@pytest.mark.parametrize("options", [DYNAMIC, {"width": 3}], ids=["paths", "drawn paths"])
def test_trees_of_some_requests_are_not_told(options: dict[str, Any]) -> None:
    """The pass is over all requests; of all of them they are told, in their order."""
    drafter, told = draft_model(options), list[ClosedTrees]()
    states = two_requests(drafter)
    requests = [state.view for state in states]
    drafter.trees_told = told.append
    trees = drafter.propose(requests, [Budget(3), Budget(0)])
    assert [tree.size > 1 for tree in trees] == [True, False] and not told
    for state in states:
        state.tokens.append(7)
    trees = drafter.propose(requests, [Budget(3), Budget(3)])
    assert len(told) == 1 and told[0].are(trees) and not told[0].are(trees[::-1])
