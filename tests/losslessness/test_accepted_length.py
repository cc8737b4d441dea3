"""Block verification keeps at least as many tokens as chain rejection; both keep the distribution, on chains of 1 … 8
tokens.

With p and q the distributions of the next token after a path x, a path of i tokens is accepted

- by chain rejection with probability Π min(q(x_k), p(x_k)), k = 1 … i;
- by block verification with probability min over 0 ≤ j ≤ i of q(x_1 … x_j) p(x_{j+1} … x_i | x_1 … x_j).

Every term of the minimum is at least the product, so block verification is never behind. The expected number of
accepted tokens is the sum of these probabilities over all paths.

Legend: J switch points, X paths, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from spec_sdk.contracts import Sampler, SamplingParams, Verifier
from spec_sdk.testing import PlannedDraw, TableDrafter, TableModel, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.remembering import Remembering
from spec_sdk.tree import TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.losslessness.plans import SAMPLINGS

SAMPLED, PROMPT = SamplingParams(temperature=1.0), (1, 0)
CHAIN, BLOCK = ChainRejection(None), BlockVerification(None)
full = pytest.mark.full


def drawn_chain(draft: TableModel, length: int) -> TableDrafter:
    return TableDrafter([draft], [[PlannedDraw("with_replacement")]] * length)


def mean_accepted(emitted: Mapping[tuple[int, ...], float]) -> float:
    return sum((len(tokens) - 1) * probability for tokens, probability in emitted.items())


def expected_accepted(target: TableModel, draft: TableModel, sampler: Sampler, length: int) -> tuple[float, float]:
    """By the formulas above: chain rejection's, block verification's."""
    paths: list[list[int]] = [[]]
    product_X = drawn_X = torch.ones(1, dtype=torch.float64)
    switched_JX = torch.ones((1, 1), dtype=torch.float64)
    chain = block = 0.0
    for _ in range(length):
        p_XV, q_XV = (
            sampler.probabilities(torch.stack([model.logits([*PROMPT, *path]) for path in paths])).double()
            for model in (target, draft)
        )
        paths = [[*path, token] for path in paths for token in range(target.vocabulary)]
        product_X = (product_X[:, None] * torch.minimum(p_XV, q_XV)).flatten()
        drawn_X = (drawn_X[:, None] * q_XV).flatten()
        switched_JX = torch.cat(((switched_JX[:, :, None] * p_XV).flatten(1), drawn_X[None]))
        chain += float(product_X.sum())
        block += float(switched_JX.amin(0).sum())
    return chain, block


def test_the_published_example() -> None:
    """Two tokens, p = (1/3, 2/3) and q = (2/3, 1/3) everywhere: 10/9 and 11/9 tokens (Sun et al., introduction)."""
    target, draft = TableModel(2, 0), TableModel(2, 0)
    target.table_RV[:] = torch.tensor([1.0, 2.0]).log()
    draft.table_RV[:] = torch.tensor([2.0, 1.0]).log()
    accepted = [
        mean_accepted(cycle_distribution(target, lambda: drawn_chain(draft, 2), verifier, SAMPLED, PROMPT))
        for verifier in (CHAIN, BLOCK)
    ]
    assert accepted == pytest.approx([10 / 9, 11 / 9], abs=1e-6)


@pytest.mark.parametrize(
    ("vocabulary", "length", "seeds"),
    [
        (3, 1, 4),
        (3, 2, 8),
        (3, 3, 10),
        (2, 4, 10),
        (3, 4, 2),
        (2, 5, 4),
        pytest.param(3, 3, 40, marks=full),
        pytest.param(2, 4, 40, marks=full),
        pytest.param(3, 4, 10, marks=full),
        pytest.param(2, 5, 20, marks=full),
        pytest.param(3, 5, 3, marks=full),
    ],
)
def test_distribution_and_expected_length_by_enumeration(vocabulary: int, length: int, seeds: int) -> None:
    """Of one cycle on a drawn chain; p and q depend on the whole path. It is of all tokens and the bonus."""
    gains = []
    for seed in range(seeds):
        target, draft = (TableModel(vocabulary, 700 + 2 * seed + i) for i in range(2))
        params = list(SAMPLINGS.values())[seed % len(SAMPLINGS)] if vocabulary > 2 else SAMPLED
        sampler = ReferenceSampler(None, params)
        expected = joint_distribution(target, sampler, PROMPT, length + 1)
        accepted = []
        for verifier in (CHAIN, BLOCK):
            emitted = cycle_distribution(
                target, functools.partial(drawn_chain, draft, length), verifier, params, PROMPT
            )
            distribution = completed_distribution(emitted, target, params, PROMPT, length + 1)
            assert float((distribution - expected).abs().max()) < 1e-6, f"{verifier.name}, seed {seed}"
            accepted.append(mean_accepted(emitted))
        assert accepted == pytest.approx(expected_accepted(target, draft, sampler, length), abs=1e-5)
        gains.append(accepted[1] - accepted[0])
    assert min(gains) > -1e-6
    # a single token leaves nothing to gain
    assert max(gains) > 5e-3 if length > 1 else max(gains) < 1e-6


def test_eight_tokens_of_a_large_vocabulary(scale: Callable[[int, int], int]) -> None:
    """The same drafts for both; p and q of 50 tokens depend on the whole path, and q is near p as a good draft's is.

    The difference's lower confidence bound is above 0: were block verification no better, this would come out with a
    probability below 1e-4 (one-sided, normal approximation). Its mean agrees with the formula on the same drafts.
    """
    vocabulary, length, drafts = 50, 8, scale(1000, 20_000)
    target, draft = TableModel(vocabulary, 31), TableModel(vocabulary, 32)
    draft.table_RV = target.table_RV + 0.8 * torch.randn(
        target.table_RV.shape, generator=torch.Generator().manual_seed(3)
    )
    sampler = Remembering(ReferenceSampler(None, SAMPLED))
    request = request_for(PROMPT, sampler, 0).view
    gains, surprises = [], []
    target.prefill(0, PROMPT[:-1])
    for _ in range(drafts):
        builder, node, path = TreeBuilder(PROMPT[-1]), 0, list(PROMPT)
        weight, expected = 1.0, 0.0
        for _ in range(length):
            p_V, q_V = (sampler.probabilities(model.logits(path)[None])[0] for model in (target, draft))
            path.append(sampler.draw(q_V, request.rng))
            node = builder.add(node, path[-1], "with_replacement", q_V)
            weight = min(weight * float(p_V[path[-1]]) / float(q_V[path[-1]]), 1.0)
            expected += weight
        tree = builder.build().tree
        logits_NV = target.score([0], [tree])[0].logits_NV
        chain, block = (accepted_of(verifier, tree, logits_NV, request) for verifier in (CHAIN, BLOCK))
        gains.append(block - chain)
        surprises.append(block - expected)
    assert mean_of(gains) - 3.72 * standard_error(gains) > 0
    assert abs(mean_of(surprises)) < 4.5 * standard_error(surprises)


def accepted_of(verifier: Verifier, *arguments: object) -> int:
    return len(verifier.verify_one(*arguments).path) - 1  # type: ignore[arg-type]


def mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).std()) / math.sqrt(len(values))
