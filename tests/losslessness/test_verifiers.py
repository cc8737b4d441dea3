"""What the verifiers say of themselves, refuse, and do on small trees by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Request, SamplingParams, Verifier
from spec_sdk.errors import UserError
from spec_sdk.testing import CHAINS, check_verifier
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.greedy import Greedy
from spec_sdk_verifiers.multi_step import MultiStep

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
VERIFIERS = [Greedy(None), ChainRejection(None), BlockVerification(None), MultiStep(None)]


def request(params: SamplingParams, seed: int = 0) -> Request:
    return request_for([7], ReferenceSampler(None, params), seed).view


def logits_for(*choices: int, vocabulary: int = 10) -> torch.Tensor:
    """Logits [N, V] whose largest entry in row i is at ``choices[i]``."""
    logits_NV = torch.zeros((len(choices), vocabulary))
    logits_NV[range(len(choices)), list(choices)] = 30.0
    return logits_NV


def test_conformance_greedy() -> None:
    check_verifier(Greedy(None))


def test_conformance_chain_rejection(scale: Callable[[int, int], int]) -> None:
    check_verifier(ChainRejection(None), plans=CHAINS, draws=scale(20, 3000))


def test_conformance_multi_step(scale: Callable[[int, int], int]) -> None:
    check_verifier(MultiStep(None), draws=scale(20, 3000))


def test_guarantees() -> None:
    assert [v.guarantee_under(GREEDY) for v in VERIFIERS] == ["exact"] * 4
    assert [v.guarantee_under(SAMPLED) for v in VERIFIERS[1:]] == ["distribution"] * 3


def test_greedy_refuses_to_sample() -> None:
    with pytest.raises(UserError, match="verifier 'greedy' needs sampling.temperature=0, it is 1.0") as refusal:
        Greedy(None).check(SAMPLED)
    assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="needs sampling.temperature=0"):
        Greedy(None).verify_one(TokenTree.root_only(7), torch.zeros((1, 10)), request(SAMPLED))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("verifier", [ChainRejection(None), BlockVerification(None)], ids=lambda v: v.name)
@pytest.mark.parametrize("second", [2, 3])
def test_verifiers_of_chains_refuse_branches(verifier: Verifier, params: SamplingParams, second: int) -> None:
    """A second child, and a second draw of the same one."""
    builder = TreeBuilder(7)
    child = builder.add(0, 1, "chosen")
    builder.add(child, 2, "chosen")
    builder.add(child, second, "chosen")
    message = f"^tree node 1 has 2 draws; verifier '{verifier.name}' takes chains, multi_step takes trees$"
    with pytest.raises(ValueError, match=message):
        verifier.verify_one(builder.build().tree, torch.zeros((builder.size, 10)), request(params))


@pytest.mark.parametrize("verifier", [Greedy(None), MultiStep(None)], ids=lambda v: v.name)
def test_greedy_follows_the_argmax_through_a_tree(verifier: Verifier) -> None:
    builder = TreeBuilder(7)
    left, right = builder.add(0, 1, "chosen"), builder.add(0, 2, "chosen")
    builder.add(left, 3, "chosen")
    builder.add(right, 4, "chosen")
    builder.add(right, 5, "chosen")
    tree = builder.build().tree
    verdict = verifier.verify_one(tree, logits_for(2, 9, 9, 5, 9, 8), request(GREEDY))
    assert verdict.path == [0, 3, 5]
    assert verdict.tokens == [2, 5, 8]


@pytest.mark.parametrize(
    ("verifier", "params"), [*((v, GREEDY) for v in VERIFIERS), *((v, SAMPLED) for v in VERIFIERS[1:])]
)
def test_a_root_alone_is_a_plain_step(verifier: Verifier, params: SamplingParams) -> None:
    verdict = verifier.verify_one(TokenTree.root_only(7), logits_for(4), request(params))
    assert (verdict.path, verdict.next_token) == ([0], 4)


def test_greedy_is_the_limit_of_sampling() -> None:
    """At a temperature near 0 the sampled rule takes the path that greedy takes, for drawn and chosen children."""
    logits_NV = torch.randn((4, 10), generator=torch.Generator().manual_seed(2))
    best = logits_NV.argmax(-1).tolist()
    cold = SamplingParams(temperature=1e-6)
    q_V = ReferenceSampler(None, cold).probabilities(logits_NV[:1])[0]
    builder = TreeBuilder(7)
    builder.add(0, (best[0] + 1) % 10, "chosen")
    drawn = builder.add(0, best[0], "with_replacement", q_V)
    builder.add(drawn, best[2], "chosen")
    tree = builder.build().tree
    for seed in range(5):
        sampled = MultiStep(None).verify_one(tree, logits_NV, request(cold, seed))
        greedy = MultiStep(None).verify_one(tree, logits_NV, request(GREEDY, seed))
        assert sampled.tokens == greedy.tokens == [best[0], best[2], best[3]]


@pytest.mark.parametrize("verifier", VERIFIERS[1:], ids=lambda v: v.name)
def test_a_token_that_cannot_have_been_drawn_is_refused(verifier: Verifier) -> None:
    builder = TreeBuilder(7)
    builder.add(0, 3, "with_replacement", torch.nn.functional.one_hot(torch.tensor(2), 10).float(), "liar")
    with pytest.raises(ValueError, match=r"tree node 1: drafter 'liar' says that it drew token 3 .* probability 0"):
        verifier.verify_one(builder.build().tree, torch.zeros((2, 10)), request(SAMPLED))


@pytest.mark.parametrize(
    ("verifier", "draws"), [(MultiStep(None), 1), (MultiStep(None), 2), (BlockVerification(None), 1)]
)
def test_a_distribution_that_is_nan_beside_its_token_is_its_drafters_fault(verifier: Verifier, draws: int) -> None:
    """Of one draw, and of one with another behind it."""
    q_V = torch.full((10,), float("nan"))
    q_V[3] = 1.0
    builder = TreeBuilder(7)
    builder.add(0, 3, "with_replacement", q_V, "liar")
    if draws == 2:
        builder.add(0, 4, "chosen")
    tree, logits_NV = builder.build().tree, torch.zeros((draws + 1, 10))
    logits_NV[:, 3] = -50
    with pytest.raises(ValueError, match=r"tree node 1: drafter 'liar' says that it drew token 3 .* NaN elsewhere"):
        verifier.verify_one(tree, logits_NV, request(SAMPLED))


@pytest.mark.parametrize("verifier", VERIFIERS[1:], ids=lambda v: v.name)
def test_useless_logits_are_refused_by_node(verifier: Verifier) -> None:
    logits_NV = logits_for(4, 4)
    logits_NV[1] = float("nan")
    with pytest.raises(ValueError, match="row 1 of the logits is NaN"):
        verifier.verify_one(TokenTree.chain(7, [4]), logits_NV, request(SAMPLED))
    with pytest.raises(ValueError, match="row 1 of the logits is NaN"):
        verifier.verify_one(TokenTree.chain(7, [4]), logits_NV, request(GREEDY))


def test_only_visited_nodes_are_turned_into_probabilities() -> None:
    rows = 0

    class Counting(ReferenceSampler):
        def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
            nonlocal rows
            rows += logits_NV.shape[0]
            return super().probabilities(logits_NV)

    builder = TreeBuilder(7)
    for token in range(6):
        builder.add(builder.add(0, token, "chosen"), token, "chosen")
    tree = builder.build().tree
    counting = Counting(None, SAMPLED)
    verdict = MultiStep(None).verify_one(tree, logits_for(*[3] * tree.size), request_for([7], counting, 0).view)
    assert verdict.tokens == [3, 3, 3]
    assert rows == len(verdict.path)
    rows = 0
    greedy = Counting(None, GREEDY)
    MultiStep(None).verify_one(tree, logits_for(*[3] * tree.size), request_for([7], greedy, 0).view)
    assert rows == 0
