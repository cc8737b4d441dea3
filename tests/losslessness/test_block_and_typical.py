"""Conformance of the verifiers beside multi-step's, and typical acceptance as it is defined."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.errors import UserError
from spec_sdk.testing import CHAINS, check_verifier
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.naive_tree import NaiveTree
from spec_sdk_verifiers.typical import Typical, TypicalConfig
from tests.support.configured import plugin_of

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)


def test_conformance(scale: Callable[[int, int], int]) -> None:
    check_verifier(BlockVerification(None), plans=CHAINS, draws=scale(20, 3000))
    check_verifier(NaiveTree(None), draws=scale(20, 3000))
    check_verifier(Typical(TypicalConfig()), draws=20)


def typical_verdict(p: list[float], tokens: list[int], params: SamplingParams = GREEDY) -> list[int]:
    builder = TreeBuilder(0)
    for token in tokens:
        builder.add(0, token, "chosen")
    logits_NV = torch.tensor(p).log().expand(len(tokens) + 1, -1)
    request = request_for([0], ReferenceSampler(None, params), 0).view
    return Typical(TypicalConfig()).verify_one(builder.build().tree, logits_NV, request).tokens


def test_typical_keeps_plausible_tokens_that_are_not_the_best() -> None:
    assert typical_verdict([0.6, 0.39, 0.01], [1]) == [1, 0]
    assert typical_verdict([0.6, 0.39, 0.01], [2]) == [0]
    assert typical_verdict([0.6, 0.39, 0.01], [1, 0]) == [0, 0]
    # the smaller threshold counts: epsilon 0.09 of the two where delta allows 0.14, and the other way round
    assert typical_verdict([0.75, 0.13, 0.12], [2]) == [2, 0]
    assert typical_verdict([0.05] * 20, [7]) == [7, 0]
    assert Typical(TypicalConfig()).guarantee_under(GREEDY) == "relaxed"


def test_typical_prefers_the_longest_path() -> None:
    builder = TreeBuilder(0)
    builder.add(0, 0, "chosen")
    builder.add(builder.add(0, 1, "chosen"), 1, "chosen")
    logits_NV = torch.tensor([0.6, 0.39, 0.01]).log().expand(4, -1)
    verdict = Typical(TypicalConfig()).verify_one(
        builder.build().tree, logits_NV, request_for([0], ReferenceSampler(None, GREEDY), 0).view
    )
    assert verdict.tokens == [1, 1, 0]


def test_typical_does_not_keep_the_distribution() -> None:
    """A plausible draft is always kept when sampling: its token comes with probability 1 instead of 0.39."""
    tree = TokenTree.chain(0, [1])
    logits_NV = torch.tensor([0.6, 0.39, 0.01]).log().expand(2, -1)
    for seed in range(20):
        request = request_for([0], ReferenceSampler(None, SAMPLED), seed).view
        assert Typical(TypicalConfig()).verify_one(tree, logits_NV, request).tokens[0] == 1


def test_typical_refuses_a_threshold_that_is_no_probability() -> None:
    with pytest.raises(UserError, match="verifier.epsilon: 1.5 must be between 0 and 1"):
        plugin_of("verifier", "typical", epsilon=1.5)
