"""The conformance kit: it passes sound plugins, and names the fault of each faulty one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from spec_sdk.contracts import (
    Budget,
    Drafter,
    Guarantee,
    PartialAttention,
    Predictor,
    Random,
    Request,
    SamplingParams,
    SpeculativeAttention,
    Verdict,
    Verifier,
)
from spec_sdk.errors import PluginFault
from spec_sdk.ops import AttentionMask, Decision, DrawnTree, Left, Ops, Rows, Uniforms, attempt, without
from spec_sdk.testing import (
    TREES,
    PlannedDraw,
    TableDrafter,
    TableModel,
    check_drafter,
    check_predictor,
    check_sampler,
    check_verifier,
    step_beyond_rounding,
)
from spec_sdk.testing.check import Skipped
from spec_sdk.testing.verifiers import verifier_checks
from spec_sdk.tree import DraftDistribution, Draw, TokenTree, TreeBuilder
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_drafters.prompt_lookup import PromptLookup, PromptLookupConfig
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.greedy import Greedy
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree

VOCABULARY = 6
TABLES = [TableModel(VOCABULARY, 1), TableModel(VOCABULARY, 2)]
NO_MODELS: Any = None


@pytest.mark.parametrize("plan", TREES)
def test_table_drafters_conform(plan: Any) -> None:
    """Of more tokens than have all their outcomes tried; test_kit_drafters.py has one of fewer."""
    tables = [TableModel(2 * VOCABULARY, seed) for seed in (1, 2)]
    check_drafter(lambda: TableDrafter(tables, plan), 2 * VOCABULARY, prompts=[[5], [1, 9, 3] * 4], draws=200)


def test_drafters_without_a_model_conform() -> None:
    check_drafter(lambda: PromptLookup(PromptLookupConfig(), NO_MODELS), VOCABULARY, draws=20)
    check_drafter(lambda: NoDraft(None, NO_MODELS), VOCABULARY, draws=20)


class Faulty(TableDrafter):
    """A table drafter, one draw per level, with something wrong in ``propose``."""

    def __init__(self) -> None:
        super().__init__(TABLES, [[PlannedDraw("with_replacement")]] * 3)

    def change_draws(self, tree: TokenTree, **changes: Any) -> TokenTree:
        draws_N = tuple(tuple(replace(draw, **changes) for draw in draws) for draws in tree.draws_N)
        return replace(tree, draws_N=draws_N)


class DeclaresUniform(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        uniform_V = torch.full((VOCABULARY,), 1 / VOCABULARY)
        return self.change_draws(super().propose_one(request, budget), q_V=uniform_V)


class DeclaresChosen(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return self.change_draws(super().propose_one(request, budget), q_V=None, kind="chosen")


class DeclaresUnnormalised(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree = super().propose_one(request, budget)
        return self.change_draws(tree, q_V=torch.full((VOCABULARY,), 0.3))


class TooDeep(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return super().propose_one(request, Budget(budget.depth + 1))


class TooManyNodes(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree = TreeBuilder(request.pending_token)
        for token in range(VOCABULARY):
            tree.add(0, token, "chosen")
        return tree.build().tree


class OtherRoot(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only((request.pending_token + 1) % VOCABULARY)


class OutsideVocabulary(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.chain(request.pending_token, [VOCABULARY])


class OwnRandomness(Faulty):
    source = random.Random(3)

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.chain(request.pending_token, [self.source.randrange(VOCABULARY)])


class CountsItsCalls(Faulty):
    """Drafts a token that depends on how many trees it has proposed, whoever they were for."""

    calls = 0

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        self.calls += 1
        return TokenTree.chain(request.pending_token, [self.calls % VOCABULARY])


class OneStateForAll(Faulty):
    """Drafts what was committed last, to whichever request."""

    last = 0

    def observe(self, requests: Sequence[Request], committed: Any, path_hidden: Any = None) -> None:
        self.last = committed[-1][-1]

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.chain(request.pending_token, [self.last])


class SlotsAreForEver(Faulty):
    """Keeps what it knows by slot, as it should, and does not forget it when another request gets the slot."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, int] = {}

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        token = self.first.setdefault(request.slot, request.tokens[0])
        return TokenTree.chain(request.pending_token, [token])


class RandomNumbersOfAnother(Faulty):
    """Draws for all requests with the first one's random numbers."""

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        trees = []
        for request in requests:
            q_V = request.sampler.probabilities(TABLES[0].logits(request.tokens)[None])[0]
            tree = TreeBuilder(request.pending_token)
            tree.add(0, request.sampler.draw(q_V, requests[0].rng), "with_replacement", q_V)
            trees.append(tree.build().tree)
        return trees


class ForgetsOne(Faulty):
    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        return super().propose(requests, budgets)[:1]


class WritesToTheRequest(Faulty):
    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree = super().propose_one(request, budget)
        request._state.tokens.append(tree.token_N[-1])
        return tree


class CountsItsSteps(Faulty):
    def observe(self, requests: Sequence[Request], committed: Any, path_hidden: Any = None) -> None:
        for request in requests:
            request._state.step += 1


class SaysNotThatItBranches(Faulty):
    branches = False

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree = TreeBuilder(request.pending_token, budget.nodes)
        for token in range(2):
            if tree.room:
                tree.add(0, token, "chosen")
        return tree.build().tree


class SortsItsDraws(Faulty):
    """Two sound draws without replacement, put down with the more probable one first."""

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree = TreeBuilder(request.pending_token)
        q_V = request.sampler.probabilities(TABLES[0].logits(request.tokens)[None])[0]
        first = request.sampler.draw(q_V, request.rng)
        second = request.sampler.draw(without(q_V, first), request.rng) if q_V[first] < 1 else first
        for token in sorted({first, second}, key=lambda token: -float(q_V[token])):
            tree.add(0, token, "without_replacement", q_V)
        return tree.build().tree


@pytest.mark.parametrize(
    ("drafter", "fault"),
    [
        (DeclaresUniform, "do not follow the declared q_V"),
        (DeclaresChosen, "tokens that depend on a random number are drawn"),
        (DeclaresUnnormalised, "q_V sums to 1.8"),
        (TooDeep, "the tree has depth 2, the budget is 1"),
        (TooManyNodes, "the tree has 7 nodes, the budget is 4"),
        (OtherRoot, "the tree begins with token"),
        (OutsideVocabulary, "token 6 lies outside the vocabulary of 6"),
        (OwnRandomness, "the same seed gave two different trees"),
        (CountsItsCalls, "prompt 0, .*, cycle 1: beside another request it got another tree than alone"),
        (OneStateForAll, "beside another request it got another tree than alone"),
        (SlotsAreForEver, "beside another request it got another tree than alone"),
        (RandomNumbersOfAnother, "beside another request it got another tree than alone"),
        (ForgetsOne, "propose returned 1 tree for 2 requests"),
        (WritesToTheRequest, "drafter 'table': its propose changed the request's tokens"),
        (CountsItsSteps, "drafter 'table': its observe changed the request's step"),
        (SaysNotThatItBranches, "drafter 'table': its tree branches at node 0, and it says that none does"),
        (SortsItsDraws, "draw 0 at depth 0: .* do not follow the declared q_V"),
    ],
)
def test_faulty_drafters_are_found_out(drafter: Callable[[], Drafter], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_drafter(drafter, VOCABULARY, draws=600)


def test_a_drafter_that_wants_hidden_states_gets_them() -> None:
    seen: list[tuple[int, ...]] = []

    class Curious(TableDrafter):
        taps = (2, 5)

        def start(self, requests: Sequence[Request], prompt_hidden: Any = None) -> None:
            for hidden in prompt_hidden:
                seen.extend(tuple(hidden[layer].shape) for layer in self.taps)

    def make() -> Drafter:
        return Curious(TABLES, TREES[0])

    with pytest.raises(ValueError, match="wants the target's hidden states"):
        check_drafter(make, VOCABULARY, draws=1)
    check_drafter(make, VOCABULARY, prompts=[[1, 2, 3]], draws=1, target=TableModel(VOCABULARY, 9))
    assert set(seen) == {(2, VOCABULARY)}


class JumpsToALeaf(MultiStep):
    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = super().verify_one(tree, logits_NV, request)
        return replace(verdict, path=[0, tree.size - 1])


class RelaxedByHalf(MultiStep):
    """Accepts whatever was drafted: no guarantee, and it says so."""

    def guarantee_under(self, params: SamplingParams) -> Any:
        return "relaxed"

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        return Verdict(tree.path_to(tree.size - 1), int(logits_NV[-1].argmax()), tree)


def test_a_verdict_must_be_a_path() -> None:
    with pytest.raises(AssertionError, match="'multi_step': tree node 3 follows node 0 in the accepted path"):
        check_verifier(JumpsToALeaf(None), plans=[[[PlannedDraw("chosen")]] * 3])


@pytest.mark.parametrize(
    ("decided", "fault"),
    [
        (None, "verifier 'whatever': its rule returned None, not a path and a token"),
        (([0, 99], 1), "verifier 'whatever': the accepted path has node 99, the tree has 2 nodes"),
        (([], 1), "the accepted path .* does not begin with the root"),
        (([0], 10**7), "next token 10000000 lies outside the vocabulary"),
        (([0], 1.0), "next token 1.0 is no int"),
        (KeyError("missing"), "verifier 'whatever': KeyError: 'missing'"),
    ],
)
def test_a_relaxed_verifiers_verdicts_are_paths_too(decided: Any, fault: str) -> None:
    class Whatever(Verifier):
        name = "whatever"
        guarantee = "relaxed"

        def rule(self, tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
            if isinstance(decided, Exception):
                raise decided
            return cast(Decision, decided)

    (_, together, *_) = verifier_checks(Whatever(None))
    assert "verdicts are paths" in together.promise
    with pytest.raises(AssertionError, match=fault):
        together.run()


def test_what_is_not_looked_at_of_a_relaxed_verifier_is_said() -> None:
    (_, _, *looked) = [check.run() for check in verifier_checks(RelaxedByHalf(None), draws=20)]
    assert looked == ["it guarantees no distribution"] * 3 and all(isinstance(words, Skipped) for words in looked)
    assert verifier_checks(Greedy(None))[-1].run() == "it refuses to sample"


def test_no_sampled_rule_is_exact() -> None:
    class Claims(Verifier):
        name = "claims"
        rule = "multi_step"
        guarantee = "exact"

    hot = SamplingParams(temperature=1.0)
    assert Claims(None).guarantee_under(hot) == "distribution"
    assert Claims(None).guarantee_under(SamplingParams()) == "exact"

    class Insists(Claims):
        def guarantee_under(self, params: SamplingParams) -> Guarantee:
            return "exact"

    with pytest.raises(AssertionError, match="its guarantee is 'exact', which is of the model's own greedy tokens"):
        verifier_checks(Insists(None))[0].run()


def test_a_verifier_without_a_rule_is_named() -> None:
    class Ruleless(Verifier):
        name = "ruleless"
        guarantee = "distribution"

    with pytest.raises(ValueError, match="^verifier 'ruleless': it has no rule, verify_one or verify; there are: "):
        check_verifier(Ruleless(None))
    Ruleless.rule = "multistep"
    with pytest.raises(ValueError, match="^verifier 'ruleless': its rule 'multistep' is unknown, did you mean 'multi"):
        check_verifier(Ruleless(None))


class AcceptsAllWhenGreedy(NaiveTree):
    """Right when sampling."""

    exact_when_greedy = False

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        verdict = super().verify_one(tree, logits_NV, request)
        return replace(verdict, path=tree.path_to(tree.size - 1)) if request.sampler.greedy else verdict


def test_in_distribution_is_exact_at_temperature_0() -> None:
    with pytest.raises(AssertionError, match="^greedy, plan 0: the tokens .* are not the target's most probable ones"):
        check_verifier(AcceptsAllWhenGreedy(None), draws=20)
    AcceptsAllWhenGreedy.guarantee_under = lambda self, params: (  # type: ignore[method-assign]
        "distribution" if params.temperature else "relaxed"
    )
    check_verifier(AcceptsAllWhenGreedy(None), draws=20)


class AllAtOnce(Verifier):
    """Right, by ``verify`` alone: it takes the numbers of all requests from their generators."""

    name = "all_at_once"
    guarantee = "distribution"
    skip = 0.0

    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        return [attempt(self._one, *case) for case in zip(trees, logits, requests, strict=True)]

    def _one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        path = [0]
        while True:
            draws, u = tree.draws_N[path[-1]], torch.rand(2, generator=request.rng).tolist()
            p_V = request.sampler.probabilities(logits_NV[path[-1]][None])[0]
            drawn = request.sampler.draw(p_V, u[1])
            matching = [draw.node for draw in draws if tree.token_N[draw.node] == drawn or u[0] < self.skip]
            if not matching:
                return Verdict(path, drawn, tree)
            path.append(matching[0])


class AllAtOnceAndWrong(AllAtOnce):
    """Its ``verify_one``, which no engine asks, is right."""

    skip = 0.5

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        return NaiveTree(None).verify_one(tree, logits_NV, request)

    def guarantee_under(self, params: SamplingParams) -> Any:
        return "distribution" if params.temperature else "relaxed"


def test_a_verifier_is_asked_as_an_engine_asks() -> None:
    check_verifier(AllAtOnce(None), draws=60)
    with pytest.raises(AssertionError, match="successive tokens is not the target's .χ²"):
        check_verifier(AllAtOnceAndWrong(None))


def test_a_relaxed_verifier_is_only_held_to_paths() -> None:
    check_verifier(RelaxedByHalf(None), draws=20)
    overstated = RelaxedByHalf(None)
    overstated.guarantee_under = lambda params: (  # type: ignore[method-assign]
        "distribution" if params.temperature else "relaxed"
    )
    with pytest.raises(AssertionError, match="joint distribution of the tokens that a cycle emits is off the target's"):
        check_verifier(overstated)


class SharesRandomNumbers(MultiStep):
    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        return super().verify(trees, logits, [requests[0]] * len(requests))


class OneFaultForAll(MultiStep):
    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        verdicts = super().verify(trees, logits, requests)
        fault = next((verdict for verdict in verdicts if isinstance(verdict, Exception)), None)
        return verdicts if fault is None else [fault] * len(verdicts)


class RaisesForAll(MultiStep):
    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        return [self.verify_one(*case) for case in zip(trees, logits, requests, strict=True)]


class LosesTheLast(MultiStep):
    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        return super().verify(trees[:4], logits[:4], requests[:4])


@pytest.mark.parametrize(
    ("verifier", "fault"),
    [
        (SharesRandomNumbers, r"temperature 1.0.*the verdict among others is .* alone it is"),
        (OneFaultForAll, "plan 0: the verdict among others is .*unusable logits"),
        (RaisesForAll, "request 4, whose logits are unusable, verify raised UnusableLogits: .*; an exception in the"),
        (LosesTheLast, "4 verdicts for 8 requests"),
    ],
)
def test_verdicts_that_depend_on_the_requests_beside_are_found_out(verifier: type[MultiStep], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_verifier(verifier(None), draws=20)


class TopPBeforeTopK(ReferenceSampler):
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        top_p = ReferenceSampler(None, replace(self.params, top_k=0, min_p=0.0)).probabilities(logits_NV)
        return ReferenceSampler(None, replace(self.params, temperature=1.0, top_p=1.0)).probabilities(top_p.log())


class Lossless(ReferenceSampler):
    guarantee = "lossless"  # type: ignore[assignment]


class DrawsTheLikeliest(ReferenceSampler):
    def draw_from(self, distribution: DraftDistribution, random: Random) -> int:
        return int(distribution.q_V.argmax())


class GlobalRandomness(ReferenceSampler):
    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        return int(torch.multinomial(p_V, 1))


class SharesItsMemory(ExactSampler):
    """Both sides of a comparison in one row: the draft's distribution overwrites the target's."""

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        rows = super().rows(tree, logits_NV)
        rows.spare = lambda beside_V: beside_V  # type: ignore[method-assign]
        return rows


class ForgetsTheFilters(ExactSampler):
    """Remembers of a drawn token what it was before top-k, top-p and min-p."""

    def draw_from(self, distribution: DraftDistribution, random: Random) -> int:
        token = super().draw_from(distribution, random)
        distribution.known = {token: float((distribution.logits_V / self.params.temperature).softmax(-1)[token])}
        return token


class OneRowTooFar(ReferenceSampler):
    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        return super().rows(tree, logits_NV.roll(-1, 0))


class AcceptsEverything(ReferenceSampler):
    """Its rows make every drafted token certain."""

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        class Certain(Left):
            def q(self, draw: Draw) -> float:
                return 1e-30

        rows = super().rows(tree, logits_NV)
        rows.left = lambda node: Certain(rows, node)  # type: ignore[method-assign]
        return rows


class RejectsWithoutTrace(ReferenceSampler):
    """After a rejection its rows go on with the target's distribution."""

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        class Forgetful(Left):
            def reject(self, draw: Draw, last: bool) -> None:
                pass

        rows = super().rows(tree, logits_NV)
        rows.left = lambda node: Forgetful(rows, node)  # type: ignore[method-assign]
        return rows


class TakesTheArgmax(ReferenceSampler):
    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        return int(p_V.argmax())


class PenaltyForgetsDraftedTokens(ReferenceSampler):
    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        return super().penalise(logits_NV, prefix, [()] * len(paths))


@pytest.mark.parametrize(
    ("sampler", "fault"),
    [
        (AcceptsEverything, "gives another joint distribution than plain sampling"),
        (RejectsWithoutTrace, "gives another joint distribution than plain sampling"),
        (TakesTheArgmax, "draw does not follow its distribution"),
        (PenaltyForgetsDraftedTokens, r"after the prefix .* and the drafted tokens \[7\] the logit of token 7 is"),
        (TopPBeforeTopK, r"top-k 20, top-p 0.85.* row \d of the probabilities is off"),
        (Lossless, "guarantee 'lossless' is none of exact, distribution, relaxed"),
        (DrawsTheLikeliest, "draw_from does not follow its distribution"),
        (GlobalRandomness, "draw takes random numbers from elsewhere"),
        (SharesItsMemory, "rows.spare must be a row of the same length in other memory"),
        (ForgetsTheFilters, "top-k 7.*rows.known of node 1 is"),
        (OneRowTooFar, r"rows.target\(0\) is off"),
    ],
)
def test_faulty_samplers_are_found_out(sampler: type[ReferenceSampler], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_sampler(lambda params: sampler(None, params))


class NearTheTop(ReferenceSampler):
    """A filter of its own: tokens within one of the largest logit."""

    own_probabilities = True

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        near_NV = logits_NV >= logits_NV.amax(-1, keepdim=True) - 1
        return super().probabilities(logits_NV.masked_fill(~near_NV, float("-inf")))


class Unnormalised(NearTheTop):
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return super().probabilities(logits_NV) * (1 if self.greedy else 0.999)


class Negative(NearTheTop):
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        p_NV = super().probabilities(logits_NV)
        if not self.greedy:
            p_NV[:, :2] += torch.tensor([0.1, -0.1])
        return p_NV


class LooksAtOtherRows(NearTheTop):
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return super().probabilities(logits_NV if self.greedy else logits_NV * (1 + 0.1 * len(logits_NV)))


class HalfPrecision(NearTheTop):
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return super().probabilities(logits_NV).to(torch.float32 if self.greedy else torch.float16)


def test_a_sampler_with_a_distribution_of_its_own_conforms() -> None:
    check_sampler(lambda params: NearTheTop(None, params))


def test_one_that_does_not_say_so_is_told_how() -> None:
    class Silent(NearTheTop):
        own_probabilities = False

    fault = "^temperature 1.0: row 0 of the probabilities is off by .*; .* sets own_probabilities = True$"
    with pytest.raises(AssertionError, match=fault):
        check_sampler(lambda params: Silent(None, params))


@pytest.mark.parametrize(
    ("sampler", "fault"),
    [
        (Unnormalised, "row 0 of the probabilities is no distribution: it sums to 0.999000"),
        (Negative, "is no distribution: it sums to 1.000000, its least is -0.1"),
        (LooksAtOtherRows, "of the probabilities is off by .* beside other rows"),
        (HalfPrecision, "probabilities are torch.float16"),
    ],
)
def test_faulty_distributions_of_ones_own_are_found_out(sampler: type[NearTheTop], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_sampler(lambda params: sampler(None, params))


@pytest.mark.parametrize("size", [1, 3, 128])
def test_the_attention_sink_conforms(size: int) -> None:
    check_predictor(AttentionSink(AttentionSinkConfig(size=size)), prefixes=(1, 2, 3, 6, 7, 40, 256, 257, 400))


class LooksAhead(AttentionSink):
    def predict(self, layer: int, q_BNHD: Any, k_BGSD: Any, v_BGSD: Any, mask: Any, ops: Any) -> PartialAttention:
        return ops.partial_attention(q_BNHD, k_BGSD, v_BGSD)


class WrongSum(AttentionSink):
    def predict(self, layer: int, q_BNHD: Any, k_BGSD: Any, v_BGSD: Any, mask: Any, ops: Any) -> PartialAttention:
        right = super().predict(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)
        return replace(right, l_BNH=torch.ones_like(right.l_BNH))


class ClaimsToBeExact(AttentionSink):
    def always_exact(self, prefix: int) -> bool:
        return True

    def predict(self, layer: int, q_BNHD: Any, k_BGSD: Any, v_BGSD: Any, mask: Any, ops: Any) -> PartialAttention:
        return AttentionSink(self.config).predict(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)


class PicksOnce(Predictor):
    """Every third key of the prefix that it saw first, whatever is rolled back."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.picked = torch.arange(0)

    def always_exact(self, prefix: int) -> bool:
        return prefix <= 16

    def truncate(self, length: int) -> None:
        if not length:
            self.picked = torch.arange(0)

    def pick(self, prefix: int) -> torch.Tensor:
        self.picked = self.picked if len(self.picked) else torch.arange(0, prefix, 3)
        return self.picked

    def predict(self, layer: int, q_BNHD: Any, k_BGSD: Any, v_BGSD: Any, mask: Any, ops: Any) -> PartialAttention:
        picked = torch.arange(mask.prefix) if self.always_exact(mask.prefix) else self.pick(mask.prefix)
        rows = torch.cat([picked.clamp(max=mask.keys - 1).unique(), torch.arange(mask.prefix, mask.keys)])
        return ops.selected_attention(q_BNHD, k_BGSD[:, :, rows], v_BGSD[:, :, rows], mask)


class PicksAnew(PicksOnce):
    """Sound: what is gone is not picked."""

    def pick(self, prefix: int) -> torch.Tensor:
        self.picked = super().pick(prefix)
        self.picked = self.picked[self.picked < prefix]
        return self.picked


class HidesItsError(AttentionSink):
    def speculate(self, *pass_: Any) -> SpeculativeAttention:
        right = super().speculate(*pass_)
        return replace(right, difference_sq_BN=torch.zeros_like(right.difference_sq_BN))


@pytest.mark.parametrize(
    ("predictor", "fault"),
    [
        (HidesItsError, "a request at prefix 700: the squared difference that speculate returns is off"),
        (LooksAhead, "prefix 1, a chain: a query attends to keys that it must not see"),
        (WrongSum, "l is not the sum of exp"),
        (ClaimsToBeExact, "prefix 7, one token: always_exact, but the prediction is off"),
    ],
)
def test_faulty_predictors_are_found_out(predictor: type[AttentionSink], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_predictor(predictor(AttentionSinkConfig(size=2)))


class ReturnsNothing(PicksAnew):
    """Forgot to return."""

    name = "returns_nothing"

    def predict(self, *pass_: Any) -> PartialAttention:
        super().predict(*pass_)
        return cast(PartialAttention, None)


class ForOneQuery(PicksAnew):
    """Of the first query alone, which would pass for all of them."""

    name = "for_one_query"

    def predict(self, *pass_: Any) -> PartialAttention:
        whole = super().predict(*pass_)
        return PartialAttention(whole.o_BNHD[:, :1], whole.m_BNH[:, :1], whole.l_BNH[:, :1])


@pytest.mark.parametrize(
    ("predictor", "fault"),
    [
        (ReturnsNothing, "^predictor 'returns_nothing': its predict returned None, not a PartialAttention$"),
        (ForOneQuery, r"^predictor 'for_one_query': its prediction is of shape \[1, 1, .*that of queries \[1, 5, "),
    ],
)
def test_what_is_no_attention_of_the_queries_is_named(predictor: type[PicksAnew], fault: str) -> None:
    """In a run too, which goes by the prediction through :meth:`Predictor.speculate`."""
    q_BNHD, k_BGSD = torch.ones(1, 5, 4, 8), torch.ones(1, 2, 25, 8)
    mask = AttentionMask.chain(20, 5, torch.device("cpu"))
    with pytest.raises(PluginFault, match=fault):
        predictor(None).speculate(0, q_BNHD, k_BGSD, k_BGSD, mask, Ops())
    with pytest.raises(PluginFault, match=fault.replace("5, ", r"\d+, ")):
        check_predictor(predictor(None))


class PicksForGood(PicksOnce):
    """What was picked at the shortest prefix that it saw, which forgetting everything does not end."""

    def truncate(self, length: int) -> None:
        pass


def test_keys_that_were_rolled_back_are_looked_for() -> None:
    with pytest.raises(AssertionError, match="a request at prefix 17: a query attends to keys that it must not see"):
        check_predictor(PicksForGood(None))
    with pytest.raises(AssertionError, match="a request at prefix 471: a query attends to keys that it must not see"):
        check_predictor(PicksOnce(None))
    check_predictor(PicksAnew(None))


def test_rounding_and_what_it_does_not_explain() -> None:
    plain_NV = torch.tensor([[1.0, 5.0, 4.99, 0.0], [0.0, 1.0, 2.0, 8.0]])
    tie_NV, fault_NV = torch.tensor([[1.0, 4.99, 5.0, 0.0], [0.0, 1.0, 2.0, 8.0]]), plain_NV.clone()
    plain_WNV = torch.stack([plain_NV, plain_NV + 0.01])
    assert step_beyond_rounding([1, 3], plain_NV, plain_WNV) is None
    assert step_beyond_rounding([2, 3], tie_NV, plain_WNV) is None
    # not what its own logits say, though a tie by the plain ones
    assert step_beyond_rounding([2, 3], plain_NV, plain_WNV) == 0
    # where all passes round alike there are no ties
    assert step_beyond_rounding([2, 3], tie_NV, torch.stack([plain_NV, plain_NV])) == 0
    # its token is the plain one, and its logits show a fault that no noise of its own can excuse
    fault_NV[1, 3] = 5.0
    assert step_beyond_rounding([1, 3], fault_NV, plain_WNV) == 1
    assert step_beyond_rounding([1, 3], torch.full_like(plain_NV, float("nan")), plain_WNV) == 0
    for own_NV, wrong_WNV in ((plain_NV, plain_WNV[:1]), (plain_NV[:1], plain_WNV), (plain_NV, plain_WNV[:, :1])):
        with pytest.raises(ValueError, match="^2 tokens take logits of two widths at least"):
            step_beyond_rounding([1, 3], own_NV, wrong_WNV)
