"""What the parts of a drafter proposed, and what was accepted of it, is told of each and adds up."""

from __future__ import annotations

from typing import Any

from spec_sdk.contracts import Budget, Drafter, Request, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.metrics import request_metrics
from spec_sdk.ops.draws import part_of
from spec_sdk.testing import TableModel, request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep


class TwoParts(Drafter):
    """One part knows what the target says next; the other guesses something else, and what comes after that."""

    name = "two"

    def __init__(self, target: TableModel, named: bool = True) -> None:
        self.target, self.named = target, named

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        right, wrong = (part_of(self.name, part) if self.named else self.name for part in ("right", "wrong"))
        tree, best = TreeBuilder(request.pending_token), int(self.target.logits(request.tokens).argmax())
        node = tree.add(0, best, "chosen", drafter=right)
        tree.add(tree.add(0, (best + 1) % 4, "chosen", drafter=wrong), best, "chosen", drafter=wrong)
        # both know what comes then
        after = int(self.target.logits([*request.tokens, best]).argmax())
        for part in (right, wrong):
            tree.add(node, after, "chosen", drafter=part)
        return tree.build().tree


def metrics(drafter: Drafter, target: TableModel) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    state = request_for([1, 2], ReferenceSampler(None, SamplingParams(temperature=0.0)), 0, 12)
    for _ in Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None)).run(state, events.append):
        pass
    return request_metrics(events)


def test_nodes_of_each_part_are_counted() -> None:
    target = TableModel(4, 3)
    counted = metrics(TwoParts(target), target)
    assert (counted["new_tokens"], counted["steps"]) == (12, 4)
    assert counted["parts"] == {
        "two/right": {"proposed": 8, "accepted": 8, "accepted_share": 1.0},
        "two/wrong": {"proposed": 12, "accepted": 4, "accepted_share": 1 / 3},
    }
    assert "parts" not in metrics(TwoParts(target, named=False), target)
