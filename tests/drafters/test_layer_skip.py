"""Drafting with the target's own layers in the target's own cache: what drafting leaves there is never seen.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, PassInputs, PassOutput, Policy, Request, RequestState, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import UserError
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.executor import Cache, PassPlan
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.parallel.spread_session import SpreadSession
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.registry import Registry
from spec_sdk.testing import check_drafter
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.static_ops import StaticOps
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner, evenly_kept, kept_layers
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import ModelTensors, tiny_decoder
from tests.support.tiny_models import TinyModels
from tests.support.tiny_ranks import ranks_at

LAYERS = tiny_decoder("smollm", 0).layers
GREEDY, DRAWN = SamplingParams(), SamplingParams(temperature=1.0)
GROWTHS: dict[str, dict[str, Any]] = {
    "chain": {},
    "early exit": {"exit": 2},
    "tree": {"width": 3},
    "dynamic tree": {"growth": "dynamic", "width": 3, "max_nodes": 5},
    "static tree": {"growth": "static", "widths": [3, 2, 1]},
    "drawn tree": {"growth": "static", "widths": [3, 1], "children": "without_replacement"},
    "other runner": {"width": 2, "runner": "layer_parallel", "size": 3},
}


def target_session(ops: Ops | None = None, int8: bool = False) -> Session:
    executor = TorchExecutor(tiny_decoder("smollm", 0), ops or Ops())
    if int8:
        executor.keep_cache_in("int8")
    return Session(executor)


def drafter_of(name: str = "layer_skip", **options: Any) -> Any:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": name, **options})
    return plugin(config, TinyModels())


def runner_of(**options: Any) -> LayerSkipRunner:
    runner = LayerSkipRunner(LayerSkipConfig(**options))
    runner.prepare(LAYERS)
    return runner


# the trees of the growths left out are looked at with a draft model (tests/losslessness/test_drafters.py)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] * (name in ("dynamic tree", "static tree"))) for name in GROWTHS],
)
def test_conformance(name: str, scale: Callable[[int, int], int]) -> None:
    prompts = [[5], [9, 3, 3, 60, 17, 9, 3]]
    target = target_session()
    check_drafter(
        lambda: drafter_of(**GROWTHS[name]), VOCABULARY, prompts=prompts, draws=scale(60, 2000), target=target
    )


class Cycles:
    """Cycles of one request, in each of which some path of the drafter's tree is kept."""

    def __init__(self, target: Session, drafter: Drafter, sampling: SamplingParams) -> None:
        self.target, self.drafter = target, drafter
        self.state = request_for([4, 8, 15, 16, 23, 42, 8], ReferenceSampler(None, sampling), 3, slot=1)
        self.state.target = target
        self.choose = random.Random(5)
        target.prefill(1, self.state.tokens[:-1])
        drafter.start([self.state.view])

    def drafted(self) -> TokenTree:
        return self.drafter.propose([self.state.view], [Budget(4, 12)])[0]

    def scored(self, tree: TokenTree) -> torch.Tensor:
        return self.target.score([1], [tree])[0].logits_NV

    def keep(self, tree: TokenTree, path: list[int], bonus: int) -> None:
        self.target.commit([1], [path])
        self.state.tokens.extend([*(tree.token_N[node] for node in path[1:]), bonus])


def poisoned(session: Session, value: float) -> None:
    """Overwrite all that lies behind the prefix: what drafting wrote, and where it did not."""
    cache, length = session.cache, session.length(1)
    assert isinstance(cache, KVCache)
    for storage in cache.storages:
        tensor = getattr(cache, storage)
        tensor[:, 1, :, length:] = value


CASES: dict[str, tuple[Callable[[], Ops], bool, float | None]] = {
    "as drafted": (Ops, False, None),
    "garbage": (Ops, False, 77.0),
    "nan": (Ops, False, float("nan")),
    "8-bit cache": (Ops, True, None),
    "8-bit cache, garbage": (Ops, True, 77.0),
    # what is masked is multiplied by 0 here, so that NaN would be seen wherever it came from
    "kernel over whole slots, garbage": (StaticOps, False, 77.0),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", GROWTHS)
def test_the_targets_passes_see_nothing_of_drafting(name: str, case: str) -> None:
    """To the bit: logits of every node of every cycle, and the K and V that are committed, are those of a session that
    scored the same trees and never drafted; also where what drafting left is overwritten with garbage.
    """
    make_ops, int8, poison = CASES[case]
    running = Cycles(target_session(make_ops(), int8), drafter_of(**GROWTHS[name]), DRAWN)
    untouched = Session(running.target.executor)
    untouched.prefill(1, running.state.tokens[:-1])
    sizes = set()
    for _ in range(10):
        tree = running.drafted()
        sizes.add(tree.size)
        if poison is not None:
            poisoned(running.target, poison)
        found_NV, expected_NV = running.scored(tree), untouched.score([1], [tree])[0].logits_NV
        assert torch.equal(found_NV, expected_NV)
        path = tree.path_to(running.choose.choice([0, tree.size - 1, running.choose.randrange(tree.size)]))
        running.keep(tree, path, running.choose.randrange(VOCABULARY))
        untouched.commit([1], [path])
    assert max(sizes) > 1
    ours, theirs = running.target.cache, untouched.cache
    assert isinstance(ours, KVCache) and isinstance(theirs, KVCache)
    length = untouched.length(1)
    assert running.target.tokens(1) == untouched.tokens(1) and length > 15
    for storage in ours.storages:
        left, right = (getattr(cache, storage)[:, 1, :, :length] for cache in (ours, theirs))
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("options", "skipped"),
    [({"skip": [1, 2, 4]}, [1, 2, 4]), ({"exit": 2}, list(range(2, LAYERS))), ({"skip": []}, [])],
)
def test_a_draft_is_the_target_with_blocks_that_add_nothing(options: dict[str, Any], skipped: list[int]) -> None:
    """Against a model whose skipped blocks are made the identity, on the K and V that the whole model left of the text.

    The tree grows in three passes there and is scored in one here.
    """
    source, whole = ModelTensors("smollm", 0), target_session()
    for layer in skipped:
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            source._tensors[f"model.layers.{layer}.{part}.weight"].zero_()
    thinner = Session(TorchExecutor(load_decoder(source, torch.device("cpu"), torch.float32), Ops()))
    text, tree = [4, 8, 15, 16, 23], TreeBuilder(42)
    for session in (whole, thinner):
        session.prefill(0, text)
    ours, theirs = whole.cache, thinner.cache
    assert isinstance(ours, KVCache) and isinstance(theirs, KVCache)
    theirs.k_LSGCD.copy_(ours.k_LSGCD)
    theirs.v_LSGCD.copy_(ours.v_LSGCD)
    runner, logits = runner_of(**options), list[torch.Tensor]()
    logits.extend(rows_of(whole.draft([0], [tree], [1], runner))[0])
    for edges in ([(0, 7), (0, 9)], [(1, 3), (2, 3), (1, 60)]):
        for parent, token in edges:
            tree.add(parent, token, "chosen")
        logits.extend(rows_of(whole.draft([0], [tree], [len(edges)], runner))[0])
    built = tree.build()
    expected_NV = thinner.score([0], [built.tree])[0].logits_NV
    for slot, drafted_V in enumerate(logits):
        assert (drafted_V - expected_NV[built.preorder[slot]]).abs().max() < 1e-4
    assert whole.tokens() == text
    # the layers left out leave nothing in the cache
    for layer in skipped:
        assert not ours.k_LSGCD[layer, 0, :, len(text) : len(text) + tree.size].any()


def answer(drafter: Drafter, depth: int = 4, sampling: SamplingParams = GREEDY) -> tuple[list[int], int]:
    """The tokens of an answer, and how many drafted ones were accepted."""
    accepted = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal accepted
        accepted += event.get("accepted", 0)

    request = request_for([30, 31, 32, 40], ReferenceSampler(None, sampling), 0, max_new_tokens=40)
    scheduler = Scheduler(target_session(), drafter, MultiStep(None), FixedPolicy(FixedConfig(depth=depth)))
    return [token for tokens in scheduler.run(request, count) for token in tokens], accepted


class Corrupting(LayerSkipRunner):
    """Leaves garbage in the place of every K and V that it was to write, in all layers."""

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        h_BNM = super().run(decoder, h_BNM, work)
        for layer in range(decoder.layers):
            B, N = h_BNM.shape[:2]
            garbage = torch.full((B, N, decoder.config.num_kv_heads, decoder.config.head_dim), 50.0 + layer)
            decoder.write_kv(layer, garbage, -garbage, work)
        return h_BNM


@pytest.mark.parametrize("name", GROWTHS)
def test_greedy_answers_are_those_of_plain_decoding(name: str) -> None:
    expected, _ = answer(NoDraft(None, TinyModels()))
    drafter = drafter_of(**GROWTHS[name])
    assert answer(drafter)[0] == expected
    drafter.runner = Corrupting(LayerSkipConfig(layers=LAYERS - 1))
    drafter.runner.prepare(LAYERS)
    assert answer(drafter)[0] == expected


def test_with_all_layers_everything_is_accepted() -> None:
    """40 tokens take 10 cycles of three accepted tokens and one of the target's own."""
    tokens, accepted = answer(drafter_of(skip=[]), depth=3)
    assert len(tokens) == 40 and accepted == 30
    # from distributions that are the target's own up to rounding
    assert answer(drafter_of(skip=[]), depth=3, sampling=DRAWN)[1] == 30


class Watched(TorchExecutor):
    """Notes of every pass: its runner, and the rows of its requests."""

    def __init__(self) -> None:
        super().__init__(tiny_decoder("smollm", 0), Ops())
        self.passes: list[tuple[str, list[int]]] = []

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        self.passes.append((plan.runner.name, inputs.live_B.tolist()))
        return super().forward(inputs, cache, plan)


class Script(Policy):
    """Given budgets, by step."""

    name = "script"

    def budget(self, request: Request) -> Budget:
        return Budget(self.config[min(request.step, len(self.config) - 1)])


def test_there_is_no_prefill_and_nothing_to_catch_up_with() -> None:
    """Nineteen plain steps are passes of one row each; the first draft after them is one row for each level."""
    executor = Watched()
    scheduler = Scheduler(Session(executor), drafter_of(skip=[1]), MultiStep(None), Script([0] * 19 + [3, 0]))
    request = request_for(list(range(3, 40)), ReferenceSampler(None, GREEDY), 0, max_new_tokens=26)
    for _ in scheduler.run(request):
        pass
    plain = [("sequential", [1])] * 19
    drafting = [("layer_skip", [1])] * 3 + [("sequential", [4])]
    assert executor.passes[:24] == [("sequential", [36]), *plain, *drafting]


@pytest.mark.parametrize(
    "members",
    [
        [{"name": "layer_skip", "width": 2}, {"name": "layer_skip", "exit": 3}],
        [{"name": "draft_model"}, {"name": "layer_skip"}, {"name": "prompt_lookup"}],
    ],
)
def test_members_of_one_tree(members: list[dict[str, Any]]) -> None:
    """Each member finds the cache as the target left it, whichever drafted there before."""
    drafter = drafter_of("merged", members=members)
    assert drafter.catches_up == any(member["name"] != "layer_skip" for member in members)
    prompts, target = [[5], [9, 3, 60]], target_session()
    check_drafter(lambda: drafter_of("merged", members=members), VOCABULARY, prompts=prompts, draws=40, target=target)
    assert answer(drafter)[0] == answer(NoDraft(None, TinyModels()))[0]


def started(target: Session, prompt: list[int], slot: int, sampling: SamplingParams = GREEDY) -> RequestState:
    """A request whose prompt the target has been fed."""
    state = request_for(prompt, ReferenceSampler(None, sampling), slot, slot=slot)
    state.target = target
    target.prefill(slot, prompt[:-1])
    return state


def test_requests_of_one_step_have_budgets_of_their_own() -> None:
    target, drafter = target_session(), drafter_of(width=2)
    states = [started(target, [5, 9, slot + 3], slot) for slot in range(3)]
    budgets = [Budget(1), Budget(4, 6), Budget(3)]
    trees = drafter.propose([state.view for state in states], budgets)
    assert [tree.depth for tree in trees] == [1, 4, 3] and trees[1].size <= 6
    for state, budget, tree in zip(states, budgets, trees, strict=True):
        assert drafter.propose([state.view], [budget])[0].token_N == tree.token_N


def test_a_penalty_holds_at_every_node() -> None:
    """A greedy chain is the choices of the penalised logits; with all layers, those of the target itself."""
    drafter, plain, choose, changed = drafter_of(skip=[]), target_session(), random.Random(1), set[int]()
    for _ in range(6):
        prompt = [choose.randrange(VOCABULARY) for _ in range(40)]
        state = started(target_session(), prompt, 0, SamplingParams(repetition_penalty=3.0))
        (tree,) = drafter.propose([state.view], [Budget(3)])
        tokens = list(prompt)
        for node in range(1, tree.size):
            plain.open(0, tokens, keep=False)
            logits_1V = roots_of(plain.feed([0], [tokens]))[0][None]
            unpenalised = int(logits_1V.argmax())
            tokens.append(int(state.sampler.penalise(logits_1V, tokens, [()]).argmax()))
            assert tree.token_N[node] == tokens[-1]
            if unpenalised != tokens[-1]:
                changed.add(node)
    assert changed == {1, 2, 3}


def test_what_is_said_of_it() -> None:
    drafter = drafter_of(layers=4)
    assert drafter.draft_name == f"tiny target itself, 4 of {LAYERS} layers"
    assert drafter.runner.declaration() == {"name": "layer_skip", "layers": evenly_kept(4, LAYERS)}
    assert drafter_of(runner="layer_parallel").draft_name == "tiny target itself, runner layer_parallel"
    assert not drafter.branches and drafter_of(width=2).branches and not drafter.catches_up


@pytest.mark.parametrize(
    ("options", "layers", "kept"),
    [
        ({}, 30, 20),
        ({}, 6, 4),
        ({}, 2, 2),
        ({}, 1, 1),
        ({"layers": 2}, 30, 2),
        ({"layers": 29}, 30, 29),
        ({"layers": 30}, 30, 30),
    ],
)
def test_layers_are_left_out_evenly(options: dict[str, Any], layers: int, kept: int) -> None:
    found = kept_layers(LayerSkipConfig(**options), layers)
    assert len(found) == kept and found == sorted(set(found)) and found[0] == 0 and found[-1] == layers - 1
    gone = [layer for layer in range(layers) if layer not in found]
    # neighbours among those left out are equally far apart, up to one
    apart = {b - a for a, b in zip(gone, gone[1:], strict=False)}
    assert not apart or max(apart) - min(apart) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": [LAYERS]}, rf"drafter\.skip: \[{LAYERS}\] must be different layers between 0 and {LAYERS - 1}"),
        ({"skip": [1, 1]}, r"drafter\.skip: \[1, 1\] must be different layers"),
        ({"skip": list(range(LAYERS))}, f"drafter.skip: all {LAYERS} layers are left out; keep one at least"),
        ({"skip": "atuo"}, "drafter.skip: 'atuo' is no choice of layers, did you mean 'auto'"),
        ({"skip": [True]}, "drafter.skip: .* must be 'auto' or a list of layers"),
        ({"skip": 3}, "drafter.skip: 3 must be 'auto' or a list of layers"),
        ({"layers": 1}, f"drafter.layers: 1 must be from 2 to {LAYERS}"),
        ({"layers": LAYERS + 1}, f"drafter.layers: {LAYERS + 1} must be from 2 to {LAYERS}"),
        ({"exit": LAYERS + 1}, f"drafter.exit: {LAYERS + 1} must be at most {LAYERS}"),
        ({"exit": 2, "skip": [1]}, "drafter.skip and drafter.exit: each says which layers are left out"),
        ({"exit": 2, "layers": 3}, "drafter.layers and drafter.exit: each says which"),
        ({"layer": 3}, "did you mean 'layers'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drafter_of(**options)


def test_a_target_that_ranks_share_drafts_with_a_runner_that_they_have() -> None:
    two, runner = ranks_at(0, 2), runner_of()
    announced: list[Any] = []

    def decide(choose: Callable[[], Any]) -> Any:
        announced.append(choose())
        return announced[-1]

    two.decide = decide  # type: ignore[method-assign]
    sessions: list[SpreadSession | None] = [None]
    executor = TorchExecutor(tiny_decoder("smollm", 0), Ops())
    for each in (None, runner):
        sessions.append(SpreadSession(executor, each, two, sessions))
    target = sessions[1]
    assert target is not None
    alone = Session(executor).draft([0], [TreeBuilder(3)], [1], runner)
    (logits,) = target.draft([0], [TreeBuilder(3)], [1], runner)
    assert torch.equal(logits.full_KV, alone[0].full_KV)
    assert announced == [[1, "draft", ([0], [[[3], [-1]]], [1], 2)]]
    with pytest.raises(UserError, match="runner 'layer_skip': the other processes do not have it; set every_rank"):
        target.draft([0], [TreeBuilder(3)], [1], runner_of())
    assert len(announced) == 1


def test_ranks_that_draft_are_all_that_have_the_target() -> None:
    models = TinyModels()
    models.ranks, models._draft_ranks = ranks_at(0, 2), ranks_at(0, 1)
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "layer_skip"})
    with pytest.raises(UserError, match=r"backend\.groups\.draft: drafter 'layer_skip' drafts with the target"):
        plugin(config, models)
