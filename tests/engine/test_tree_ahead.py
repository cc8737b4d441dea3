"""The target's pass over a tree that is launched before the tree is read, on captured passes that are repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Policy, Request, SamplingParams
from spec_sdk.contracts.drafter import Hidden
from spec_sdk.engine.tree_ahead import LaunchedPass, TreesAhead
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.tree_closing import ClosingRule
from spec_sdk.ops import Ops, host_reads
from spec_sdk.ops.grown_paths import ClosedTrees
from spec_sdk.policy import FixedPolicy
from spec_sdk.policy.fixed import FixedConfig
from spec_sdk.registry import Registry
from spec_sdk.testing import StaticOps, repeated
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.draft_model import DraftModelDrafter
from spec_sdk_drafters.noting_drafter import NotingDrafter
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.near import check_near
from tests.support.served_requests import PROMPTS, Marks, Served
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels

DEPTH = 3
GROWN = {"growth": "dynamic", "width": 3, "max_nodes": 6, "children": "top_k"}
SAMPLED = SamplingParams(temperature=1.0)
FIXED = FixedPolicy(FixedConfig(depth=DEPTH))


class Noting(NotingDrafter, DraftModelDrafter):
    """Notes the target's states that it is told of."""

    name = "noting"
    taps = (1, 3)

    def __init__(self, config: Any, models: Any) -> None:
        super().__init__(config, models)
        self.states: list[torch.Tensor] = []

    def _note(self, request: Request, hidden: Hidden) -> None:
        self.states += [hidden[layer] for layer in self.taps]


def drafter_of(captured: bool, kind: type[DraftModelDrafter] = Noting) -> Any:
    """Its draft model is a half of the target, and so often right."""
    decoder = load_decoder(RandomWeights(TINY, 0), torch.device("cpu"), torch.float32)
    models, half = TinyModels(decoder), decoder.subset([0, 2, 3])
    executor = GraphExecutor(half, StaticOps(), repeated) if captured else TorchExecutor(half, StaticOps())
    models._draft = replace(models._draft, executor=executor)
    _, config = Registry.discover().configure("drafter", {"name": "draft_model", **GROWN})
    return kind(config, models)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[LaunchedPass]:
    """The passes that were launched."""
    made, hand_out = list[LaunchedPass](), TreesAhead.hand_out

    def noted(*arguments: Any) -> LaunchedPass | None:
        found = hand_out(*arguments)
        made.extend([found] if found is not None else [])
        return found

    monkeypatch.setattr(TreesAhead, "hand_out", noted)
    return made


Run = Callable[..., Served]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Requests to their ends, by captured passes or by eager ones."""

    def served(
        captured: bool,
        kind: type[DraftModelDrafter] = Noting,
        params: SamplingParams | None = None,
        policy: Policy | None = None,
        requests: int = 1,
        tokens: int = 16,
        prompts: Sequence[list[int]] = PROMPTS,
        prepare: Callable[[Served], None] = lambda one: None,
    ) -> Served:
        drafter, options = drafter_of(captured, kind), () if params is None else (MultiStep(None), params)
        one = Served(captured, requests, monkeypatch, drafter, policy or FIXED, *options)
        prepare(one)
        for number in range(requests):
            one.add(number, prompts[number], tokens)
        one.run()
        return one

    return served


class Priced(Policy):
    """Nodes at a price that most of them are not worth."""

    name = "priced"

    def budget(self, request: Request) -> Budget:
        return Budget(DEPTH, 16, node_costs=(0.0, 0.0, 0.1, 0.3, 0.6, 1.0, 2.0))


class Unlike(Policy):
    """A depth, and prices of levels and nodes, for each request its own."""

    name = "unlike"

    def budget(self, request: Request) -> Budget:
        depth, scale = (4, 2, 3)[request.id], (1.0, 0.2, 3.0)[request.id]
        costs = tuple(scale * cost for cost in (0.0, 0.0, 0.1, 0.3, 0.6, 1.0, 2.0))
        return Budget(depth, 32, node_costs=costs, level_cost=0.05 * request.id)


def states_of(served: Served) -> list[torch.Tensor]:
    drafter: Any = served.scheduler.drafter
    states: list[torch.Tensor] = drafter.states
    return states


@pytest.mark.parametrize("params", [None, SAMPLED], ids=["greedy", "sampled"])
def test_answers_and_states_are_those_of_passes_behind_the_read(
    params: SamplingParams | None, run: Run, handed: list[LaunchedPass]
) -> None:
    eager = run(False, params=params)
    assert not handed
    ahead = run(True, params=params)
    assert ahead.tokens == eager.tokens and ahead.reasons == eager.reasons
    cycles = len(states_of(eager)) // 2
    # the last token needs no draft
    assert all(each.taken for each in handed) and cycles - 1 <= len(handed) <= cycles
    assert max(len(states) for states in states_of(eager)) > 1
    for found, expected in zip(states_of(ahead), states_of(eager), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    cached = ahead.session.length()
    for name in ("k_LSGCD", "v_LSGCD"):
        one, other = (getattr(each.session.cache, name)[:, 0, :, :cached] for each in (ahead, eager))
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("policy", "requests"), [(Priced, 1), (Unlike, 3)])
def test_scores_are_of_the_trees_alone(
    policy: type[Policy], requests: int, run: Run, handed: list[LaunchedPass]
) -> None:
    """Under prices, each request's own."""
    eager, ahead = (run(captured, policy=policy(None), requests=requests) for captured in (False, True))
    assert ahead.tokens == eager.tokens
    assert handed and all(each.taken for each in handed)
    assert max(len(each.turns) for each in handed) == requests
    for each in handed:
        for turn in each.turns:
            size = turn.tree.size
            assert len(turn.scores.logits_NV) == size
            layers = {layer: len(h_NM) for layer, h_NM in turn.scores.hidden.items()}
            assert layers == dict.fromkeys(Noting.taps, size)
    assert any(each.closed.node_B3N.shape[2] > turn.tree.size for each in handed for turn in each.turns)


def closed_of(places: int, *trees: TokenTree) -> ClosedTrees:
    """As a device has them, with places behind a tree's last node."""
    node_B3N = torch.zeros((len(trees), 3, places), dtype=torch.int32)
    for node_3N, tree in zip(node_B3N, trees, strict=True):
        node_3N[:, : tree.size] = torch.tensor([tree.token_N, tree.depth_N, tree.end_N])
        node_3N[0, 0] = 0
    return ClosedTrees(node_B3N, host_reads.begin(node_B3N.flatten(1).double()))


@torch.no_grad()
@pytest.mark.parametrize("name", ["smollm", "mistral_sliding"])
def test_closed_trees_are_scored_as_the_trees_themselves(name: str) -> None:
    """Also of a target whose layers see the last tokens alone."""
    session = Session(GraphExecutor(tiny_decoder(name), StaticOps(), repeated))
    session.prefill(0, [*range(5, 40)])
    session.prefill(2, [*range(40, 51)])
    builder = TreeBuilder(7)
    for parent, token in ((0, 9), (0, 4), (1, 9), (3, 2), (2, 8), (3, 30), (6, 31)):
        builder.add(parent, token, "chosen")
    # deeper than a window
    node = 5
    for token in range(40, 68):
        node = builder.add(node, token, "chosen")
    slots, trees = [0, 2], [builder.build().tree, TokenTree.chain(8, [3, 4, 5, 6, 7])]
    expected = session.score(slots, trees, (1,))
    for places in (trees[0].size, 45, 64):
        found = session.score_closed(slots, [7, 8], closed_of(places, *trees), (1,))
        for tree, one, other in zip(trees, found, expected, strict=True):
            assert len(one.logits_NV) == places
            check_near(one.logits_NV[: tree.size], other.logits_NV)
            check_near(one.hidden[1][: tree.size], other.hidden[1])
        tokens = [tree.token_N for tree in trees]
        assert session.take_ahead(slots, tokens) and not session.take_ahead(slots, tokens)
    tree = trees[0]
    session.commit(slots, [tree.path_to(tree.size - 1), [0, 1]])
    assert session.tokens(0)[-2:] == [tree.token_N[tree.parent_N[-1]], tree.token_N[-1]]
    assert session.tokens(2)[-2:] == [8, 3]


@torch.no_grad()
def test_behind_no_prefix_the_places_of_no_node_see_themselves() -> None:
    """A row that sees nothing is no number, and would leave that in the cache."""
    session = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
    tree = TokenTree.chain(7, [3, 9])
    (found,) = session.score_closed([0], [7], closed_of(8, tree), ())
    (expected,) = session.score([0], [tree])
    check_near(found.logits_NV[: tree.size], expected.logits_NV)
    assert isinstance(session.cache, KVCache) and not session.cache.k_LSGCD.isnan().any()


def test_behind_a_prompt_of_one_token(run: Run, handed: list[LaunchedPass]) -> None:
    eager, ahead = (run(captured, policy=Priced(None), prompts=[[5]]) for captured in (False, True))
    assert ahead.tokens == eager.tokens and handed and all(each.taken for each in handed)


@torch.no_grad()
def test_a_token_that_the_target_lacks_breaks_nothing() -> None:
    """The host is yet to read it, and to say so by name."""
    session = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
    session.prefill(0, [5, 6])
    tree = TokenTree.chain(7, [session.vocabulary + 3])
    session.score_closed([0], [7], closed_of(2, tree), ())
    with pytest.raises(ValueError, match="tree node 1: token"):
        session.score([0], [tree])


@torch.no_grad()
def test_where_no_pass_can_be_launched_before() -> None:
    tree = TokenTree.chain(7, [3])
    assert Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated)).scores_closed
    for executor, runner in (
        (TorchExecutor(tiny_decoder(), Ops()), None),
        (GraphExecutor(tiny_decoder(), StaticOps(), repeated), LayerParallelRunner.of([[0, 1]])),
    ):
        session = Session(executor, runner)
        session.prefill(0, [5, 6])
        assert not session.scores_closed and not session.take_ahead([0], [tree.token_N])


@pytest.mark.parametrize("params", [None, SAMPLED], ids=["greedy", "sampled"])
def test_several_requests_share_a_pass(
    params: SamplingParams | None, run: Run, handed: list[LaunchedPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In cycles that all of them draft in, whatever room each has left."""
    again = list[int]()
    grow = Session.grow

    def noted(session: Session, slots: Sequence[int], *arguments: Any) -> Any:
        again.append(len(slots))
        return grow(session, slots, *arguments)

    eager = run(False, params=params, requests=3)
    monkeypatch.setattr(Session, "grow", noted)
    ahead = run(True, params=params, requests=3)
    assert ahead.tokens == eager.tokens and ahead.reasons == eager.reasons
    assert all(each.taken for each in handed)
    assert {1, 2, 3} == {len(each.turns) for each in handed}
    depths = [{turn.budget.depth for turn in each.turns} for each in handed]
    assert any(len(own) > 1 for own in depths), "of unlike depths"
    # of what has room for fewer nodes than levels of equal share no launch is made
    assert len(again) <= 2
    for found, expected in zip(sorted_states(ahead), sorted_states(eager), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def sorted_states(served: Served) -> list[torch.Tensor]:
    """Those of requests that go on side by side come in another order where one joins behind a pass ahead."""
    return sorted(states_of(served), key=lambda state: (len(state), float(state[0, 0])))


class OfTheFirst(Policy):
    """Grants the first request drafts, and the second one none."""

    name = "of_the_first"

    def budget(self, request: Request) -> Budget:
        return Budget(0 if request.id else DEPTH)


def test_one_that_drafts_beside_one_that_does_not(run: Run, handed: list[LaunchedPass]) -> None:
    eager, ahead = (run(captured, policy=OfTheFirst(None), requests=2) for captured in (False, True))
    assert ahead.tokens == eager.tokens
    assert len(handed) < 4 and all(each.taken for each in handed)


class Another(Noting):
    """Proposes other trees than it told of, in every other cycle: another token, or a node less."""

    name = "another"

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        (tree,) = super().propose(requests, budgets)
        step = requests[0].step
        if step % 2 or tree.size < 2:
            return [tree]
        kept = [*tree.token_N[1:-1], (tree.token_N[-1] + step) % TINY.vocab_size] if step % 4 else tree.token_N[1:-1]
        return [TokenTree.chain(tree.token_N[0], list(kept)[: budgets[0].depth])]


def test_a_pass_over_another_tree_is_made_again(run: Run, handed: list[LaunchedPass]) -> None:
    eager, ahead = run(False, Another), run(True, Another)
    assert ahead.tokens == eager.tokens
    assert {each.taken for each in handed} == {True, False}


class InTargetsCache(Noting):
    """Writes to the target's cache once it has told of its tree."""

    name = "in_targets_cache"

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        trees = super().propose(requests, budgets)
        runner = LayerSkipRunner(LayerSkipConfig(exit=1))
        runner.prepare(TINY.num_layers)
        builder = type(self._drafts[0].tree)(requests[0].pending_token)
        requests[0].target.draft([0], [builder], [1], runner)
        return trees


def test_a_pass_that_was_written_over_is_made_again(run: Run, handed: list[LaunchedPass]) -> None:
    eager, ahead = run(False, InTargetsCache), run(True, InTargetsCache)
    assert ahead.tokens == eager.tokens
    assert handed and not any(each.taken for each in handed)


def test_a_target_that_cannot_begin_is_told_of_nothing(
    run: Run, handed: list[LaunchedPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that predicts attention: nothing is closed on the device for it."""
    monkeypatch.setattr(Session, "scores_closed", False)
    monkeypatch.setattr(ClosingRule, "closed", None)
    assert run(True).tokens == run(False).tokens and not handed


class Pausing(Policy):
    """Grants drafts in six steps of seven, behind a pause of seven."""

    name = "pausing"

    def budget(self, request: Request) -> Budget:
        return Budget(0 if request.step < 7 or request.step % 7 == 0 else DEPTH)


def test_a_single_plain_step_launches_nothing(run: Run, handed: list[LaunchedPass]) -> None:
    """Drafting goes on behind it, however long it had paused before."""
    ahead = run(True, policy=Pausing(None), tokens=60)
    assert len(handed) > 12 and all(each.taken for each in handed)
    # in the first pause alone
    assert ahead.launched <= 5


def test_a_pass_that_fails_costs_nobody_anything(
    run: Run, handed: list[LaunchedPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(session: Session, *arguments: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Session, "score_closed", fails)
    assert run(True).tokens == run(False).tokens and not handed


class OutOfIdeas(Noting):
    """Fails in the first request's third cycle, when it has told of its tree."""

    name = "out_of_ideas"

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        trees = super().propose(requests, budgets)
        assert self.trees_told is not None
        if requests[0].id == 0 and requests[0].step == 2:
            raise ValueError("out of ideas")
        return trees


def test_a_drafter_that_fails_behind_it(run: Run, handed: list[LaunchedPass], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request ends; the next one's trees are its own."""
    drafter: Any = drafter_of(True, OutOfIdeas)
    one = Served(True, 1, monkeypatch, drafter, FIXED)
    one.add(0, PROMPTS[0], 24)
    with pytest.raises(ValueError, match="out of ideas"):
        one.run()
    assert Drafter.trees_told is None and drafter.trees_told is None
    one.add(1, PROMPTS[1], 12)
    one.run()
    assert one.tokens[1] == run(False, requests=2, tokens=12).tokens[1]
    assert len(handed) > 3 and all(each.taken for each in handed), "the one that failed is dropped"


def test_the_pass_is_no_part_of_drafting(run: Run, handed: list[LaunchedPass]) -> None:
    """By a clock that counts its own marks: drafting ends where the pass begins, and the pass where it is launched."""
    cycles: list[dict[str, Any]] = []

    def prepare(one: Served) -> None:
        one.scheduler._clock = Marks()
        one.emit = cycles.append

    run(True, Another, prepare=prepare)
    times = [(event["draft_s"], event["verify_s"]) for event in cycles if event["event"] == "cycle"]
    taken = [times[i] for i, each in enumerate(handed) if each.taken]
    again = [times[i] for i, each in enumerate(handed) if not each.taken]
    assert taken and again
    assert {draft for draft, _ in taken} == {draft for draft, _ in again} == {1.0}
    assert {verify for _, verify in again}.isdisjoint(verify for _, verify in taken)
    assert min(verify for _, verify in again) > max(verify for _, verify in taken)
