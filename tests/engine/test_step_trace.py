"""A trace is the tree that was proposed, with the probabilities of drafter and target, and the path that was kept."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk.contracts import Budget, Request, SamplingParams
from spec_sdk.engine import told_logits as module
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.step_trace import StepTrace
from spec_sdk.testing import TableDrafter, TableModel
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk.tree import TokenTree
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.plans import TREES

PROMPT = [2, 0]


class Remembering(TableDrafter):
    """Keeps the trees that it proposed."""

    proposed: list[TokenTree]

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        self.proposed.append(super().propose_one(request, budget))
        return self.proposed[-1]


def run(plan: str, seed: int, trace: bool = True, tokens: int = 16) -> tuple[list[dict[str, Any]], list[TokenTree]]:
    """The cycles of a run, and the trees that were proposed in it."""
    target, *tables = (TableModel(4, seed) for seed in (41, 42, 43))
    drafter = Remembering(tables, TREES[plan])
    drafter.proposed = []
    state = request_for(PROMPT, reference_sampler(SamplingParams(temperature=1.0)), seed, tokens)
    state.trace = trace
    events: list[dict[str, Any]] = []
    for _ in Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None)).run(state, events.append):
        pass
    return [event for event in events if event["event"] == "cycle"], drafter.proposed


@pytest.mark.parametrize("plan", ["all kinds, two drafters", "repeated draws", "top-2 tree"])
def test_it_is_what_happened(plan: str) -> None:
    target = TableModel(4, 41)
    branches = ended = 0
    for seed in range(8):
        cycles, proposed = run(plan, seed)
        trees = iter(proposed)
        prefix = list(PROMPT)
        for cycle in cycles:
            trace = StepTrace(**cycle["trace"])
            tree = next(trees) if cycle["budget"] else TokenTree.root_only(prefix[-1])
            assert (trace.token_N, trace.parent_N) == (list(tree.token_N), list(tree.parent_N))
            for node in range(1, tree.size):
                parent = tree.parent_N[node]
                own_V = target.logits(prefix + [tree.token_N[i] for i in tree.path_to(parent)[1:]]).softmax(-1)
                assert trace.target_probability_N[node] == pytest.approx(float(own_V[tree.token_N[node]]), abs=1e-5)
                draws = [draw for draw in tree.draws_N[parent] if draw.node == node]
                assert trace.drafter_N[node] == list(dict.fromkeys(draw.drafter for draw in draws))
                drawn = next((draw.q_V for draw in draws if draw.q_V is not None), None)
                expected = None if drawn is None else float(drawn[tree.token_N[node]])
                assert trace.draft_probability_N[node] == (expected if expected is None else pytest.approx(expected))
            kept = [tree.token_N[node] for node in trace.path[1:]]
            assert tree.path_to(trace.path[-1]) == trace.path
            own = [] if trace.next_token is None else [trace.next_token]
            assert kept + own == cycle["tokens"]
            if trace.next_token is not None:
                own_V = target.logits(prefix + kept).softmax(-1)
                assert trace.next_probability == pytest.approx(float(own_V[trace.next_token]), abs=1e-5)
            branches += trace.path[1:] != list(range(1, len(trace.path)))
            ended += trace.next_token is None
            prefix += cycle["tokens"]
    assert branches > 1 or "repeated" in plan
    assert ended == 0


def test_a_stop_token_ends_the_path() -> None:
    """What comes after the answer's end is not part of it."""
    cut = 0
    for seed in range(12):
        target, *tables = (TableModel(4, seed) for seed in (41, 42, 43))
        state = request_for(PROMPT, reference_sampler(SamplingParams(temperature=1.0)), seed, 16)
        state.trace, state.stop_ids = True, frozenset({1})
        events: list[dict[str, Any]] = []
        drafter = TableDrafter(tables, TREES["every token chosen"])
        for _ in Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None)).run(state, events.append):
            pass
        cycle = [event for event in events if event["event"] == "cycle"][-1]
        trace = StepTrace(**cycle["trace"])
        emitted = [trace.token_N[node] for node in trace.path[1:]]
        assert emitted + ([] if trace.next_token is None else [trace.next_token]) == cycle["tokens"]
        cut += trace.next_token is None
    assert cut > 0


def test_asking_changes_nothing_and_not_asking_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = run("all kinds, two drafters", 5)

    def never(*_: Any) -> Any:
        raise AssertionError("a trace that nobody asked for")

    monkeypatch.setattr(module, "read_traces", never)
    monkeypatch.setattr(module, "Traced", never)
    unasked, _ = run("all kinds, two drafters", 5, trace=False)
    assert not any("trace" in cycle for cycle in unasked)
    assert [cycle["tokens"] for cycle in unasked] == [cycle["tokens"] for cycle in asked]
    # a wait of its own for the device, where it is asked for
    assert [cycle["host_reads"] + 1 for cycle in unasked] == [cycle["host_reads"] for cycle in asked]
