"""A tree of the most probable paths as one captured launch: that of a pass for each level, as its growth asks.

Legend: N pairs, M model dim, S model dim of the target.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_sdk.contracts import Budget, DraftLogits, SamplingParams
from spec_sdk.model import path_levels
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import EAGLE_HEADS, load_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.path_levels import counts_of, counts_of_all, shares_of
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.tree_intervals import intervals
from spec_sdk.ops import Ops, host_reads
from spec_sdk.ops.grown_paths import ClosedTrees, GrownPaths, ProbablePaths, RowsToCommit, TreeClosing
from spec_sdk.registry import Registry
from spec_sdk.testing import StaticOps, repeated
from spec_sdk.testing.executors import check_grown_paths
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.beam import grow_beam
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from tests.draft_heads.test_drafter import Served
from tests.support.grown_trees import Fed, FedLevel, fed_and_grown, fed_to_both, keep_a_path, level_by_level
from tests.support.near import check_near
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_heads import HeadSizes, random_ends, write_eagle1, write_eagle3
from tests.support.tiny_models import TinyModels

SIZES = HeadSizes(M=64, S=64, head_dim=16)
PATHS = [
    ProbablePaths(1, 4, 4096),
    ProbablePaths(4, 3, 4096),
    ProbablePaths(3, 4, 8),
    ProbablePaths(2, 1, 4096),
]
ROUNDS = (5, 1, 3)
"""Tokens that are committed in one round after the other."""


@given(st.lists(st.integers(0, 30), max_size=20))
@settings(max_examples=60, deadline=None)
def test_intervals_are_those_of_the_host(parents: list[int]) -> None:
    tree = TreeBuilder(0)
    for token, parent in enumerate(parents, start=1):
        tree.add(parent % tree.size, token, "chosen")
    ancestor_SS = torch.zeros(tree.size, tree.size)
    for node in range(tree.size):
        above = node
        while above >= 0:
            ancestor_SS[node, above] = 1
            above = tree.parent[above]
    # beside a tree of another shape
    parent_S, deepest = torch.tensor(tree.parent), torch.arange(-1, tree.size - 1)
    both = torch.stack((ancestor_SS, torch.ones(tree.size, tree.size).tril()))
    start_BS, end_BS = intervals(torch.stack((parent_S, deepest)), both)
    assert (start_BS[0].tolist(), end_BS[0].tolist()) == tree.intervals()
    assert start_BS[1].tolist() == [*range(tree.size)] and set(end_BS[1].tolist()) == {tree.size}


@given(st.integers(1, 6), st.integers(1, 7), st.integers(8, 40))
def test_every_level_gets_its_share(width: int, depth: int, nodes: int) -> None:
    """As a growth shares out the room that is left, however its logits are."""
    fed = TreeBuilder(0, nodes)
    growing = grow_beam(fed, logits_of(1), depth, width, "tests")
    asked = []
    try:
        asked.append(next(growing))
        while True:
            asked.append(growing.send(logits_of(asked[-1])))
    except StopIteration:
        pass
    assert list(counts_of(ProbablePaths(width, depth, nodes))) == asked


def logits_of(nodes: int) -> DraftLogits:
    return DraftLogits.over_all(torch.randn(nodes, 12))


def compare(grown: GrownPaths, root: DraftLogits, levels: list[FedLevel], width: int) -> None:
    assert [(list(own.token_K), list(own.parent_K)) for own in grown.levels] == [level[:2] for level in levels]
    expected = [root, *(level[2] for level in levels)]
    for found, plain in zip([grown.root, *(own.logits for own in grown.levels)], expected, strict=True):
        check_near(found.full_KV, plain.full_KV)
        reads = host_reads.total()
        tops = found.top(width)
        assert host_reads.total() == reads, "they are in host memory"
        for one, other in zip(tops, plain.top(width), strict=True):
            check_near(one, other)


def check_the_same(make: Callable[[bool], Session], fed: Callable[[Session, int], Fed], slot: int = 1) -> None:
    """Rounds of text, with trees of all shapes behind them, in a session that captures and in one that does not."""
    for paths in PATHS:
        ahead, plain = make(True), make(False)
        for count in ROUNDS:
            given, reads = fed(plain, count), host_reads.total()
            tokens, grown, root = fed_to_both(ahead, plain, slot, given, paths)
            assert host_reads.total() == reads + 1
            levels = level_by_level(plain, root, tokens[-1], slot, paths)
            compare(grown, root, levels, paths.width)
            cached = plain.length(slot) + sum(len(tokens) for tokens, _, _ in levels)
            for name in KVCache.storages:
                one, other = (getattr(session.cache, name)[:, slot, :, :cached] for session in (ahead, plain))
                check_near(one, other)
            if isinstance(plain, DraftHeadSession):
                assert grown.state_XM is not None
                check_near(grown.state_XM, plain._states_TM[slot])
            else:
                keep_a_path(ahead, plain, slot, tokens[-1], grown)


@torch.no_grad()
@pytest.mark.parametrize("groups", [None, [[0], [1, 2]]], ids=["plain", "layer-parallel"])
def test_of_a_model(groups: list[list[int]] | None) -> None:
    captures = 0

    def counted(run: Callable[[], PassOutput]) -> tuple[Callable[[], object], PassOutput]:
        nonlocal captures
        captures += 1
        return repeated(run)

    def make(captured: bool) -> Session:
        runner = None if groups is None else LayerParallelRunner.of(groups)
        decoder = tiny_decoder()
        executor = GraphExecutor(decoder, StaticOps(), counted) if captured else TorchExecutor(decoder, Ops())
        session = Session(executor, runner)
        # a larger cache would be captured anew
        session.reserve(2, 96)
        return session

    chosen = random.Random(3)
    check_the_same(make, lambda session, count: ([chosen.randrange(session.vocabulary) for _ in range(count)], None))
    # rounds of up to eight tokens share one
    assert captures == len(PATHS)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["eagle3", "normed output", "eagle"])
def test_of_a_head(kind: str, tmp_path: Path) -> None:
    if kind == "eagle":
        write_eagle1(tmp_path, SIZES)
    else:
        write_eagle3(tmp_path, SIZES, **({"norm_output": True} if kind == "normed output" else {}))
    ends, generator = random_ends(SIZES, dtype=torch.float32), torch.Generator().manual_seed(3)

    def make(captured: bool) -> Session:
        ops = StaticOps()
        ops.capture = repeated if captured else None
        cpu, choices = torch.device("cpu"), HeadChoices(weights="dense")
        head = load_head(open_draft_head(str(tmp_path)), EAGLE_HEADS, ends, choices, cpu, torch.float32, ops)
        return DraftHeadSession(head)

    def pairs(session: Session, count: int) -> Fed:
        assert isinstance(session, DraftHeadSession)
        states = {layer: torch.randn(count, SIZES.S, generator=generator) for layer in session.head.taps}
        tokens = torch.randint(3, SIZES.V, (count,), generator=generator)
        return tokens.tolist(), session.head.features(states)

    check_the_same(make, pairs)


UNLIKE = [ProbablePaths(3, 4, 99), ProbablePaths(3, 2, 99), ProbablePaths(3, 3, 99, most_levels=1)]
"""Of one width, and of unlike depths."""


@torch.no_grad()
@pytest.mark.parametrize("of_head", [False, True], ids=["model", "head"])
def test_several_requests_at_once(of_head: bool, tmp_path: Path) -> None:
    """Each grows as it does alone, behind rows of its own number, in slots of any order; one read for all."""
    if of_head:
        write_eagle3(tmp_path, SIZES)
    ends, generator = random_ends(SIZES, dtype=torch.float32), torch.Generator().manual_seed(3)

    def make() -> Session:
        if not of_head:
            session = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
        else:
            ops = StaticOps()
            ops.capture = repeated
            cpu, choices = torch.device("cpu"), HeadChoices(weights="dense")
            head = load_head(open_draft_head(str(tmp_path)), EAGLE_HEADS, ends, choices, cpu, torch.float32, ops)
            session = DraftHeadSession(head)
        session.reserve(4, 96)
        return session

    together, alone, slots = make(), make(), [2, 0, 3]
    for counts in ((5, 1, 3), (1, 9, 2)):
        tokens = [torch.randint(3, SIZES.V, (count,), generator=generator).tolist() for count in counts]
        features = [torch.randn(count, SIZES.M, generator=generator) for count in counts]
        reads = host_reads.total()
        if isinstance(together, DraftHeadSession):
            grown = together.feed_pairs_and_grow(slots, tokens, features, UNLIKE)
        else:
            grown = together.feed_and_grow(slots, tokens, UNLIKE)
        assert host_reads.total() == reads + 1
        for slot, fed, states, paths, found in zip(slots, tokens, features, UNLIKE, grown, strict=True):
            own = fed_and_grown(alone, slot, fed, paths, states if of_head else None)
            assert len(found.levels) == 3 >= len(own.levels)
            levels = zip(found.levels[: len(own.levels)], own.levels, strict=True)
            for one, other in ((found.root, own.root), *((one.logits, other.logits) for one, other in levels)):
                check_near(one.full_KV, other.full_KV)
            for one_level, other_level in zip(found.levels, own.levels, strict=False):
                assert (one_level.token_K, one_level.parent_K) == (other_level.token_K, other_level.parent_K)
            assert together.length(slot) == alone.length(slot)
            if of_head:
                assert found.state_XM is not None and own.state_XM is not None
                check_near(found.state_XM[: len(own.state_XM)], own.state_XM)


@torch.no_grad()
def test_requests_whose_levels_are_unlike_are_fed_by_passes() -> None:
    """Of other widths, or of shares that hang on how many levels follow."""
    session = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
    for unlike in (ProbablePaths(2, 4, 99), ProbablePaths(3, 4, 7)):
        assert not any(own.levels for own in session.feed_and_grow([0, 1], [[5], [6, 7]], [UNLIKE[0], unlike]))
    # many rows of one are as many of all
    assert not any(own.levels for own in session.feed_and_grow([0, 1], [[5] * 20, [6, 7]], UNLIKE[:2]))
    assert all(own.levels for own in session.feed_and_grow([0, 1], [[5] * 9, [6, 7]], UNLIKE[:2]))
    few, fewer = ProbablePaths(3, 4, 7), ProbablePaths(3, 2, 7)
    assert counts_of_all([few, fewer]) is None and counts_of_all([few]) == counts_of(few)
    assert counts_of_all(UNLIKE) == (3, 3, 3)
    # of as many nodes as their depths ask for, and an even number of levels
    assert counts_of_all([ProbablePaths(4, 3, 13), ProbablePaths(4, 6, 25, most_levels=3)]) == (4, 4, 4, 4)


@torch.no_grad()
def test_each_request_has_room_for_the_levels_of_all() -> None:
    """One whose own tree would just fit into the cache is fed those of one beside it."""
    config = replace(TINY, max_context=4096)
    decoder = load_decoder(RandomWeights(config, 0), torch.device("cpu"), torch.float32)
    session = Session(GraphExecutor(decoder, StaticOps(), repeated))
    session.prefill(0, [5] * 1020)
    session.prefill(1, [6])
    assert isinstance(session.cache, KVCache) and session.cache.capacity == 1024
    paths = [ProbablePaths(4, 1, 99), ProbablePaths(4, 12, 99)]
    assert all(own.levels for own in session.feed_and_grow([0, 1], [[5], [6]], paths))
    # nor is any fed positions that the model does not have
    short = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
    short.prefill(0, [5] * (short.context - 4))
    assert not any(own.levels for own in short.feed_and_grow([0, 1], [[5], [6]], paths))


@torch.no_grad()
def test_the_kit_sees_trees_of_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = GraphExecutor(tiny_decoder(), StaticOps(), repeated)
    check_grown_paths(executor, 1e-4, random.Random(0), "here")
    monkeypatch.setattr(path_levels, "shares_of", lambda paths: shares_of(replace(paths, nodes=10**6)))
    with pytest.raises(AssertionError, match="^here: a tree of 9 nodes at most is fed "):
        check_grown_paths(executor, 1e-4, random.Random(0), "here")


@torch.no_grad()
def test_a_small_tree_is_not_scored_with_as_many_rows_as_a_large_one() -> None:
    """Beside it in one launch it is; from some size on none is told of."""
    costs, told = ((0.0,) * 8, (0.0,) * 16, (0.0,) * 99), list[ClosedTrees]()
    closings = [TreeClosing(60, own, told.append) for own in costs]
    paths = [ProbablePaths(4, 5, 99, closing=closing) for closing in closings]
    for together, rows in ((paths[:2], [16]), ([paths[0]] * 3 + paths[2:], []), (paths[2:], [61])):
        session = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
        slots = [*range(len(together))]
        grown = session.feed_and_grow(slots, [[5 + slot] for slot in slots], together)
        assert all(own.levels for own in grown)
        assert [closed.node_B3N.shape[2] for closed in told] == rows
        told.clear()


@torch.no_grad()
def test_what_it_does_not_take_is_fed_by_passes() -> None:
    session = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
    session.reserve(1, 400)
    for tokens, paths in (
        ([5] * 200, ProbablePaths(1, 3, 99)),
        ([5], ProbablePaths(0, 3, 99)),
        ([5], ProbablePaths(-1, 3, 99)),
        ([5], ProbablePaths(60, 5, 4096)),
        ([5], ProbablePaths(session.vocabulary + 1, 2, 4096)),
    ):
        grown = fed_and_grown(session, 0, tokens, paths)
        assert not grown.levels and len(grown.root) == 1
    for token in (session.vocabulary, -1):
        with pytest.raises(IndexError):
            fed_and_grown(session, 0, [5, token], ProbablePaths(1, 3, 99))
    in_16_bits = GraphExecutor(tiny_decoder(), StaticOps(), repeated, insists=False)
    in_16_bits.keep_cache_in("bfloat16")
    assert not in_16_bits.grows_paths
    assert not fed_and_grown(Session(in_16_bits), 0, [5], ProbablePaths(1, 3, 99)).levels


@torch.no_grad()
def test_tokens_that_the_target_lacks_are_not_drafted() -> None:
    """Padding rows of a draft model have logits like others, and the device does not pick them."""
    ahead = Session(GraphExecutor(tiny_decoder(), StaticOps(), repeated))
    few = ahead.vocabulary // 3
    (root,) = Session(TorchExecutor(tiny_decoder(), Ops())).feed([0], [[5, 6, 7]])
    assert root.top(4)[1].max() >= few
    grown = fed_and_grown(ahead, 0, [5, 6, 7], ProbablePaths(4, 4, 99, vocabulary=few))
    assert [max(level.token_K) < few for level in grown.levels] == [True] * 3
    reads = host_reads.total()
    logits = grown.root.within(few)
    assert logits.top(4)[1].tolist() == root.within(few).top(4)[1].tolist()
    assert host_reads.total() == reads + 1, "those of the plain pass alone"
    assert fed_and_grown(ahead, 0, [4], ProbablePaths(4, 4, 99, most_levels=1)).levels[0].token_K
    assert len(fed_and_grown(ahead, 0, [4], ProbablePaths(4, 4, 99, most_levels=1)).levels) == 1


@torch.no_grad()
def test_unusable_logits_are_left_to_the_growth() -> None:
    """Nothing is drafted of a level that is not a number; whoever grows the tree finds that out."""
    executor = GraphExecutor(tiny_decoder(), StaticOps(), repeated)
    session = Session(executor)
    session.reserve(1, 64)
    executor.decoder = executor.decoder.with_head(executor.decoder.output_head)
    executor.decoder.final_norm_M = torch.full_like(executor.decoder.final_norm_M, float("nan"))
    rows = RowsToCommit(0, 0, [5, 6])
    made = executor.grow_paths([rows], session.cache, None, [ProbablePaths(2, 3, 99)])
    assert made is not None
    (grown,) = made
    assert grown.root.full_KV.isnan().all()
    logprob_KW, _ = grown.root.top(2)
    assert logprob_KW.isnan().all()


@pytest.mark.parametrize(
    ("options", "level_cost", "grown", "levels"),
    [
        ({"growth": "beam", "width": 3}, 0.0, True, False),
        ({"growth": "dynamic", "width": 2, "max_nodes": 6, "runner": "layer_parallel"}, 0.0, True, False),
        # a level that is not worth its price is not part of a shape that is known
        ({"growth": "beam", "width": 1, "children": "top_k"}, 1e-4, True, False),
        ({"growth": "beam", "width": 1, "children": "top_k"}, 0.0, False, True),
        ({"growth": "static", "widths": [2, 1], "children": "top_k"}, 0.0, False, True),
        # what is drawn does not end for its price
        ({"growth": "beam", "width": 1}, 1e-4, False, True),
    ],
    ids=["beam", "dynamic", "priced chain", "chain", "static", "drawn chain"],
)
def test_a_drafter_drafts_the_same(
    options: dict[str, Any], level_cost: float, grown: bool, levels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over cycles with random verdicts, as one whose draft model is not captured; and by which kind of launch."""
    made, again = dict[str, int](), list[type]()
    grow = Session.grow

    def noted(session: Session, *arguments: Any) -> Any:
        again.append(type(session.executor))
        return grow(session, *arguments)

    monkeypatch.setattr(Session, "grow", noted)
    for name in ("grow_paths", "draft_levels"):
        plain = getattr(GraphExecutor, name)

        def counted(executor: GraphExecutor, *arguments: Any, name: str = name, plain: Any = plain) -> Any:
            found = plain(executor, *arguments)
            made[name] = made.get(name, 0) + (found is not None)
            return found

        monkeypatch.setattr(GraphExecutor, name, counted)
    served, sampler = [], ExactSampler(ExactConfig(), SamplingParams(temperature=1.0))
    for captured in (True, False):
        models = TinyModels()
        decoder, ops = tiny_decoder("smollm", 1), StaticOps()
        executor = GraphExecutor(decoder, ops, repeated) if captured else TorchExecutor(decoder, ops)
        models._draft = replace(models._draft, executor=executor)
        plugin: Any
        plugin, config = Registry.discover().configure("drafter", {"name": "draft_model", **options})
        served.append(Served(plugin(config, models), [4, 8, 15, 16], 3, sampler))
    for _ in range(6):
        one, other = (each.cycle(Budget(3, level_cost=level_cost)) for each in served)
        assert one.size > 1 and (one.token_N, one.parent_N) == (other.token_N, other.parent_N)
    assert bool(made.get("grow_paths")) == grown and bool(made.get("draft_levels")) == levels
    # of what was fed nothing is fed again; under a price a level more may be asked for than the tree before had
    assert TorchExecutor in again and (GraphExecutor not in again or level_cost)
