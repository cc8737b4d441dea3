"""Block verification keeps at least as many tokens as chain rejection; typical acceptance does as it is defined."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Request, SamplingParams, Verifier
from spec_sdk.errors import UserError
from spec_sdk.testing import CHAINS, check_verifier
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.statistics import joint_law
from spec_sdk.testing.tables import TableDrafter, TableModel
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.naive_tree import NaiveTree
from spec_sdk_verifiers.typical import Typical, TypicalConfig
from tests.losslessness.enumeration import Chooser, EnumeratingSampler, emitted_law, outcomes
from tests.losslessness.plans import CHAINS as NAMED_CHAINS

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)


def expected_accepted(verifier: Verifier, seed: int, depth: int = 2, vocabulary: int = 3) -> float:
    """Mean number of accepted tokens of a drawn chain, by enumeration. The laws depend on the node's depth only."""
    rng = torch.Generator().manual_seed(seed)
    logits_NV = 1.5 * torch.randn((depth + 1, vocabulary), generator=rng)
    q_NV = torch.softmax(1.5 * torch.randn((depth, vocabulary), generator=rng), -1)
    sampler = EnumeratingSampler(None, SAMPLED)

    def run(chooser: Chooser) -> int:
        sampler.chooser = chooser
        builder, node = TreeBuilder(0), 0
        for q_V in q_NV:
            node = builder.add(node, sampler.draw(q_V, rng), "with_replacement", q_V)
        verdict = verifier.verify(builder.build().tree, logits_NV, request_for([0], sampler, 0))
        return len(verdict.path) - 1

    return sum(accepted * weight for accepted, weight in outcomes(run))


def test_block_verification_never_accepts_less() -> None:
    gains = [
        expected_accepted(BlockVerification(None), seed) - expected_accepted(ChainRejection(None), seed)
        for seed in range(20)
    ]
    assert min(gains) > -1e-6
    assert max(gains) > 1e-2


class PlainResidual(BlockVerification):
    """Wrong: goes on from max(p − q, 0), as if every token before had been accepted with certainty."""

    def _rest(self, weight: float, p_V: torch.Tensor, q_V: torch.Tensor, request: Request) -> torch.Tensor:
        return super()._rest(1.0, p_V, q_V, request)


@pytest.mark.parametrize(("verifier", "right"), [(BlockVerification(None), True), (PlainResidual(None), False)])
def test_enumeration_tells_the_block_residual_from_the_plain_one(verifier: Verifier, right: bool) -> None:
    target, draft = (TableModel(3, seed, spread=2.5) for seed in (120, 121))
    plan = NAMED_CHAINS["drawn chain"]
    law = emitted_law(target, lambda: TableDrafter([draft, draft], plan), verifier, SAMPLED, (1, 2), 3)
    error = float((law - joint_law(target, ReferenceSampler(None, SAMPLED), (1, 2), 3)).abs().max())
    assert error < 1e-6 if right else error > 1e-3


def test_conformance(scale: Callable[[int, int], int]) -> None:
    check_verifier(BlockVerification(None), plans=CHAINS, draws=scale(300, 3000))
    check_verifier(NaiveTree(None), draws=scale(100, 3000))
    check_verifier(Typical(TypicalConfig()), draws=20)


def typical_verdict(p: list[float], tokens: list[int], params: SamplingParams = GREEDY) -> list[int]:
    builder = TreeBuilder(0)
    for token in tokens:
        builder.add(0, token, "chosen")
    logits_NV = torch.tensor(p).log().expand(len(tokens) + 1, -1)
    request = request_for([0], ReferenceSampler(None, params), 0)
    return Typical(TypicalConfig()).verify(builder.build().tree, logits_NV, request).tokens


def test_typical_keeps_plausible_tokens_that_are_not_the_best() -> None:
    assert typical_verdict([0.6, 0.39, 0.01], [1]) == [1, 0]
    assert typical_verdict([0.6, 0.39, 0.01], [2]) == [0]
    assert typical_verdict([0.6, 0.39, 0.01], [1, 0]) == [0, 0]
    assert Typical(TypicalConfig()).guarantee_under(GREEDY) == "relaxed"


def test_typical_prefers_the_longest_path() -> None:
    builder = TreeBuilder(0)
    builder.add(0, 0, "chosen")
    builder.add(builder.add(0, 1, "chosen"), 1, "chosen")
    logits_NV = torch.tensor([0.6, 0.39, 0.01]).log().expand(4, -1)
    verdict = Typical(TypicalConfig()).verify(
        builder.build().tree, logits_NV, request_for([0], ReferenceSampler(None, GREEDY), 0)
    )
    assert verdict.tokens == [1, 1, 0]


def test_typical_does_not_keep_the_law() -> None:
    """A plausible draft is always kept when sampling: its token comes with probability 1 instead of 0.39."""
    tree = TokenTree.chain(0, [1])
    logits_NV = torch.tensor([0.6, 0.39, 0.01]).log().expand(2, -1)
    for seed in range(20):
        request = request_for([0], ReferenceSampler(None, SAMPLED), seed)
        assert Typical(TypicalConfig()).verify(tree, logits_NV, request).tokens[0] == 1


def test_typical_refuses_a_threshold_that_is_no_probability() -> None:
    with pytest.raises(UserError, match="verifier.epsilon: 1.5 must lie between 0 and 1"):
        Typical(TypicalConfig(epsilon=1.5))
