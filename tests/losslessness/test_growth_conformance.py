"""check_growth: it passes the installed growths and the example's, and names the fault of each faulty one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import DraftLogits, Growing, Growth, Request, TreeShape
from spec_sdk.errors import PluginFault
from spec_sdk.registry import Registry
from spec_sdk.testing import check_growth
from spec_sdk.testing.growths import growth_checks
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_growth.auto import AutoConfig, AutoGrowth
from spec_sdk_growth.beam import BeamConfig, BeamGrowth
from spec_sdk_growth.dynamic import DynamicConfig, DynamicGrowth
from spec_sdk_growth.static import StaticConfig, StaticGrowth
from tests.support.example_plugin import example

GROWTHS = [
    AutoGrowth(AutoConfig()),
    AutoGrowth(AutoConfig(width=3)),
    AutoGrowth(AutoConfig(width=3, temperature=0.5)),
    BeamGrowth(BeamConfig(width=2)),
    BeamGrowth(BeamConfig(temperature=2.0)),
    DynamicGrowth(DynamicConfig(width=3, max_nodes=7)),
    StaticGrowth(StaticConfig(widths=[2, 1], children="with_replacement")),
    StaticGrowth(StaticConfig(widths=[2, 2, 1], children="without_replacement")),
]


@pytest.mark.parametrize("growth", GROWTHS, ids=lambda growth: f"{growth.name}-{growth.config}")
def test_first_party_growths_conform(growth: Any) -> None:
    check_growth(growth, draws=300, budgets=20)


def test_every_first_party_growth_is_checked() -> None:
    ours = [
        n for n in Registry.discover().names("growth") if Registry.discover().offer("growth", n).package == "spec-sdk"
    ]
    assert {growth.name for growth in GROWTHS} == set(ours)


@pytest.mark.parametrize("floor", [0.0, 0.4, 1.0])
def test_the_examples_growth_conforms(floor: float) -> None:
    module = example("growth")
    check_growth(module.Confident(module.ConfidentConfig(floor=floor)), draws=300, budgets=30)


class Chain(StaticGrowth):
    """A drawn chain, with something wrong in a subclass. It says nothing of a fixed shape: that is not inherited."""

    def __init__(self) -> None:
        super().__init__(StaticConfig(widths=[1], children="with_replacement"))

    def draw(self, fed: TreeBuilder, node: int, logits_V: torch.Tensor, request: Request) -> int:
        distribution = request.sampler.distribution(logits_V)
        return fed.add(node, request.sampler.draw_from(distribution, request.rng), "with_replacement", distribution)

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        node, logits = 0, root
        for level in range(depth):
            if level:
                logits = yield 1
            node = self.draw(fed, node, logits.full_KV[-1], request)
        return fed.build().tree


class TooDeep(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        return (yield from super().grow(fed, root, depth + 1, request, drafter))


class TooManyNodes(Chain):
    branches = True

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        for token in root.full_KV[0].topk(5).indices.tolist():
            fed.add(0, token, "chosen")
        return fed.build().tree
        yield


class TakesPlacesForTokens(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        fed.add(0, int(root.logits_KR[0].argmax()), "chosen")
        return fed.build().tree
        yield


class FeedsTooFew(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        for token in root.full_KV[0].topk(min(2, fed.room)).indices.tolist():
            fed.add(0, token, "chosen")
        yield 1
        return fed.build().tree


class FeedsAgain(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        fed.add(0, 1, "chosen")
        yield 1
        yield 1
        return fed.build().tree


class SaysNotThatItBranches(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        for token in root.full_KV[0].topk(min(2, fed.room)).indices.tolist():
            fed.add(0, token, "chosen")
        return fed.build().tree
        yield


class PrunesWhatItDrew(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        self.draw(fed, 0, root.full_KV[0], request)
        return TokenTree.root_only(fed.root)
        yield


class DrawsUntilItIsLikely(Chain):
    def draw(self, fed: TreeBuilder, node: int, logits_V: torch.Tensor, request: Request) -> int:
        distribution = request.sampler.distribution(logits_V)
        for _ in range(3):
            token = request.sampler.draw_from(distribution, request.rng)
            if distribution.q_V[token] > 0.2:
                break
        return fed.add(node, token, "with_replacement", distribution)


class DeclaresChosen(Chain):
    def draw(self, fed: TreeBuilder, node: int, logits_V: torch.Tensor, request: Request) -> int:
        return fed.add(node, request.sampler.draw_from(request.sampler.distribution(logits_V), request.rng), "chosen")


class KeepsItsRequestInItself(Chain):
    request: Request

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        self.request = request
        return super().grow(fed, root, depth, request, drafter)

    def draw(self, fed: TreeBuilder, node: int, logits_V: torch.Tensor, request: Request) -> int:
        return super().draw(fed, node, logits_V, self.request)


class CountsItsCalls(Chain):
    calls = 0

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        self.calls += 1
        fed.add(0, self.calls % 5, "chosen")
        return fed.build().tree
        yield


class ReturnsNothing(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Any:
        return None
        yield


class Noting(Chain):
    """A chain that notes probabilities, and so may be given no rows. Sound."""

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        node, logits = 0, root
        for level in range(depth):
            if level:
                logits = yield 1
            if not self.goes_on(logits):
                break
            token, probability = self.likeliest(logits)
            node = fed.add(node, token, "chosen", drafter=drafter, probability=probability)
        return fed.build().tree

    def goes_on(self, logits: DraftLogits) -> bool:
        return len(logits) > 0

    def likeliest(self, logits: DraftLogits) -> tuple[int, float]:
        logprob_KW, token_KW = logits.top(1)
        return int(token_KW), float(logprob_KW.exp())


class WantsRows(Noting):
    def goes_on(self, logits: DraftLogits) -> bool:
        return True


class GoesOnWithoutRows(WantsRows):
    def likeliest(self, logits: DraftLogits) -> tuple[int, float]:
        return super().likeliest(logits) if len(logits) else (0, 0.5)


class NoGenerator(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Any:
        return fed.build().tree


class ChangesTheRequest(Chain):
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        request._state.step += 1
        return (yield from super().grow(fed, root, depth, request, drafter))


class HasAnotherShape(StaticGrowth):
    def fixed_shape(self, depth: int, max_nodes: int, request: Request) -> TreeShape:
        return TreeShape((1,) * (depth + 1), 1.0)

    def __init__(self) -> None:
        super().__init__(StaticConfig(widths=[1], children="with_replacement"))


class DrawsAgain(StaticGrowth):
    """Two different children of every node, whatever was drawn for it."""

    def fixed_shape(self, depth: int, max_nodes: int, request: Request) -> TreeShape | None:
        return super().fixed_shape(depth, max_nodes, request)

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        growing = super().grow(fed, replace(root, drawn_KW=None), depth, request, drafter)
        count = next(growing, None)
        while count is not None:
            logits = yield count
            try:
                count = growing.send(replace(logits, drawn_KW=None))
            except StopIteration as done:
                return done.value
        return fed.build().tree

    def __init__(self) -> None:
        super().__init__(StaticConfig(widths=[2, 1], children="without_replacement"))


class KeepsOtherPaths(StaticGrowth):
    """The two best children of the root, and the best of each of these."""

    def kept_paths(self, request: Request) -> int:
        return 2

    def __init__(self) -> None:
        super().__init__(StaticConfig(widths=[2, 1], children="top_k"))


class KeepsOtherNodes(BeamGrowth):
    """Says that it keeps the best of all levels, and keeps its paths."""

    def most_offered(self, request: Request) -> int:
        return 3

    def __init__(self) -> None:
        super().__init__(BeamConfig(width=2, children="top_k"))


class PrunesItsPaths(KeepsOtherNodes):
    """Says that it keeps its paths, and leaves out the last of them."""

    def kept_paths(self, request: Request) -> int:
        return 2

    def most_offered(self, request: Request) -> int:
        return 0

    def grow_chosen(self, fed: TreeBuilder, root: DraftLogits, depth: int, drafter: str) -> Growing:
        yield from super().grow_chosen(fed, root, depth, drafter)
        kept = TreeBuilder(fed.root)
        for node in range(1, max(2, fed.size - 1)):
            kept.add(fed.parent[node], fed.token[node], "chosen", probability=0.1)
        return kept.build().tree


@pytest.mark.parametrize(
    ("growth", "fault"),
    [
        (TooDeep, "depth 2, the budget is 1|feeds a node of depth"),
        (TooManyNodes, "may have 4 nodes"),
        (TakesPlacesForTokens, "and only .* can be drafted"),
        (FeedsTooFew, "feeds 1 node, and 2 were added"),
        (FeedsAgain, "feeds 1 node, and 0 were added"),
        (SaysNotThatItBranches, "its tree branches"),
        (PrunesWhatItDrew, "1 drawn tokens were pruned"),
        (DrawsUntilItIsLikely, "do not follow the declared q_V"),
        (DeclaresChosen, "all tokens are declared chosen|the same seed"),
        (KeepsItsRequestInItself, "beside another request"),
        (CountsItsCalls, "the same seed gave two different trees"),
        (ReturnsNothing, "None, which is no tree"),
        (WantsRows, r"growth 'static', .*: given logits of no rows \(K = 0\), it raised .*Error: "),
        (GoesOnWithoutRows, r"no rows \(K = 0\), it (asks for more|added 1 nodes)"),
        (ChangesTheRequest, "drafter 'static': its propose changed the request's step"),
        (HasAnotherShape, "by its fixed shape"),
        (DrawsAgain, "it was given drawn_KW, tokens .*, and added "),
        (KeepsOtherPaths, "the 2 most probable paths that kept_paths says"),
        (KeepsOtherNodes, "its tree has the paths .*, and by most_offered=3 it keeps"),
        (PrunesItsPaths, "its tree has the paths .*, and by most_offered=0 it keeps"),
    ],
)
def test_a_faulty_growth_is_named(growth: Callable[[], Growth], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_growth(growth(), draws=1000, budgets=30)


def test_one_that_is_no_generator_is_named() -> None:
    with pytest.raises(PluginFault, match="growth 'static': its grow is no generator .*; it returned a TokenTree$"):
        check_growth(NoGenerator())


def test_a_drafter_is_told_of_one_that_returns_nothing() -> None:
    nobody: Any = None
    growing = ReturnsNothing().growing(TreeBuilder(0), DraftLogits.over_all(torch.zeros(1, 8)), 2, nobody, "drafter")
    with pytest.raises(PluginFault, match="^growth 'static': its grow returned None, which is no tree$"):
        next(growing)


@pytest.mark.parametrize(
    ("yielded", "fault"),
    [
        (5, "it feeds 5 nodes, and 1 were added since it last did"),
        (None, "it feeds None nodes, and 1 were added since it last did"),
    ],
)
def test_a_drafter_is_told_of_one_that_feeds_what_it_did_not_add(yielded: Any, fault: str) -> None:
    class Feeds(Chain):
        def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
            fed.add(0, 3, "chosen", drafter=drafter)
            yield yielded
            return fed.build().tree

    nobody: Any = None
    growing = Feeds().growing(TreeBuilder(0), DraftLogits.over_all(torch.zeros(1, 8)), 2, nobody, "drafter")
    with pytest.raises(PluginFault, match=f"^growth 'static': {fault}$"):
        next(growing)


def test_what_notes_probabilities_is_given_no_rows() -> None:
    said = growth_checks(Noting(), budgets=30)[-1].run()
    assert said is not None and int(said.split()[2]) > 5
    assert growth_checks(Chain(), budgets=30)[-1].run() == "30 budgets; 0 trees ended by logits of no rows"


def test_the_sound_chain_that_they_spoil_conforms() -> None:
    assert Chain.fixed_shape is Growth.fixed_shape
    check_growth(Chain(), draws=300, budgets=30)


def test_a_growth_of_its_own_says_itself_which_paths_it_keeps() -> None:
    class Another(BeamGrowth):
        def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
            return super().grow(fed, root, 1, request, drafter)

    class Other(DynamicGrowth):
        def grow_chosen(self, fed: TreeBuilder, root: DraftLogits, depth: int, drafter: str) -> Growing:
            return super().grow_chosen(fed, root, 1, drafter)

    for own in (Another, Other):
        assert own.most_offered is Growth.most_offered
    assert Growth.most_offered not in (BeamGrowth.most_offered, DynamicGrowth.most_offered)
    says = Growth.kept_paths
    # the shape of a chain does not hang on which paths are kept
    assert Other.fixed_shape is DynamicGrowth.fixed_shape is BeamGrowth.fixed_shape is not Growth.fixed_shape
    assert Another.kept_paths is says is Other.kept_paths
    assert says not in (BeamGrowth.kept_paths, DynamicGrowth.kept_paths)
