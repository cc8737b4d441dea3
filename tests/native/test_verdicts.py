"""Verdicts on rows of the native kernels are the reference's for the same random numbers, and as lossless.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk.testing import SIGNIFICANCE, TREES, check_verifier
from spec_sdk.testing.backends import check_rule
from spec_sdk.testing.defaults import reference_sampler
from spec_sdk.testing.drawing import check_drawing
from spec_sdk.tree import DraftDistribution, TokenTree, TreeBuilder
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.native import verdicts
from spec_sdk_backends.native.mass import Mass
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.sigmoid import SigmoidConfig, SigmoidSampler
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from tests.losslessness.plans import TREES as TREE_PLANS
from tests.samplers.random_cases import Case, Given, make_case
from tests.samplers.random_trees import WAYS, TreeCase, is_allowed, make_tree_case
from tests.samplers.test_equal_tokens import FEW, differing, differing_trees
from tests.samplers.test_losslessness import DRAWN_CHAIN, PENALISED, probability

SAMPLED = SamplingParams(temperature=1.0)


def native(params: SamplingParams) -> ExactSampler:
    sampler = ExactSampler(ExactConfig("torch"), params)
    sampler.ops = NativeOps(CpuOps())
    return sampler


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A node for each row of the target that the kernels made."""
    nodes: list[int] = []

    class Counted(verdicts.NativeLeft):
        def __init__(self, rows: verdicts.NativeRows, node: int) -> None:
            nodes.append(node)
            super().__init__(rows, node)

    monkeypatch.setattr(verdicts, "NativeLeft", Counted)
    return nodes


def test_random_chains(made: list[int], scale: Callable[[int, int], int]) -> None:
    cases = [make_case(seed, 1 << 15) for seed in range(scale(120, 2000))]

    def answers(case: Case) -> list[list[int]]:
        return case.answers(native(case.params))

    steps, excused = differing(cases, answers)
    assert steps > len(cases) and excused <= 1 + FEW * steps and len(made) > steps / 2


def test_random_trees(made: list[int], scale: Callable[[int, int], int]) -> None:
    """Branches; draws with and without replacement, chosen, mixed, twice alike; logits and probabilities; filters."""
    cases = [make_tree_case(seed, 1 << 14) for seed in range(scale(90, 1000))]
    assert {case.way for case in cases} == set(WAYS)

    def answers(case: TreeCase) -> list[list[int]]:
        return case.answers(native(case.params))

    steps, excused, kept = differing_trees(cases, answers)
    assert steps > len(cases) and kept > len(cases) // 2 and excused <= 1 + FEW * steps and len(made) > steps / 2
    for case in cases:
        for b, answer in enumerate(answers(case)):
            assert is_allowed(case, b, answer)


def test_naive_sampling_draws_from_the_same_rows(made: list[int]) -> None:
    """So what it gives with any tree is plain decoding's, whatever rule that has, token by token."""
    tree, logits_NV = TokenTree.root_only(0), 3 * torch.randn(1, 5000, generator=torch.Generator().manual_seed(8))
    for params in (SAMPLED, SamplingParams(temperature=0.7, top_p=0.9)):
        for number in torch.rand(50, generator=torch.Generator().manual_seed(9)).tolist():
            found = [
                verifier.verify_one(tree, logits_NV, Given.of(native(params), torch.tensor([number]))).tokens
                for verifier in (MultiStep(None), NaiveTree(None))
            ]
            assert found[0] == found[1]
    assert len(made) == 200


def test_it_is_lossless(scale: Callable[[int, int], int]) -> None:
    def sampler(params: SamplingParams) -> Sampler:
        return native(params)

    check_verifier(MultiStep(None), plans=TREES, draws=scale(20, 3000), make_sampler=sampler)


def test_more_answers_are_distributed_as_the_targets(scale: Callable[[int, int], int]) -> None:
    for params in (SAMPLED, SamplingParams(temperature=1.3, top_p=0.8), PENALISED):
        draws = scale(300, 20_000)
        assert probability(ChainRejection(None), native(params), DRAWN_CHAIN, draws) > SIGNIFICANCE / 6
        plan = TREE_PLANS["all kinds, two drafters"]
        assert probability(MultiStep(None), native(params), plan, draws) > SIGNIFICANCE / 6


def test_what_is_left_of_q_alone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same test finds rows that are wrong: p itself after a rejection, not what of it lies beyond q."""
    monkeypatch.setattr(Mass, "beyond", lambda own, p, q: -1.0)
    assert probability(ChainRejection(None), native(SAMPLED), DRAWN_CHAIN, 1000) < SIGNIFICANCE


def tree_of(sampler: Sampler, draft: torch.Tensor | SomeLogits, tokens: tuple[int, ...] = (3, 5)) -> TokenTree:
    """A root whose children were drawn from one row."""
    builder, distribution = TreeBuilder(0), sampler.distribution(draft)
    for token in tokens:
        builder.add(0, token, "with_replacement", distribution)
    return builder.build().tree


def answer(sampler: Sampler, tree: TokenTree, logits_NV: torch.Tensor, uniforms: list[float]) -> list[int]:
    request = Given.of(sampler, torch.tensor(uniforms, dtype=torch.float64))
    return MultiStep(None).verify_one(tree, logits_NV, request).tokens


def test_draft_logits_of_some_tokens_are_spread_over_none_others(made: list[int]) -> None:
    target_NV = torch.randn(3, 400, generator=torch.Generator().manual_seed(2))
    token_R = torch.tensor([5, 390, 3, 17])
    some = SomeLogits(torch.tensor([2.0, 1.0, 1.5, 0.0]), token_R, 400)
    for first in (0.05, 0.5, 0.999):
        for last in (0.1, 0.6, 0.9):
            numbers = [first, 0.999, last]
            expected = answer(reference_sampler(SAMPLED), tree_of(reference_sampler(SAMPLED), some), target_NV, numbers)
            some.__dict__.pop("full_V", None)
            assert answer(native(SAMPLED), tree_of(native(SAMPLED), some), target_NV, numbers) == expected
            assert "full_V" not in some.__dict__, "no row over the vocabulary is made"
    assert made


def test_sequences_beside_one_another_and_a_distribution_that_was_read(made: list[int]) -> None:
    """A draw comes from what its own sequence has left, and from the probabilities that its drafter read."""
    rng = torch.Generator().manual_seed(4)
    target_NV, rows = torch.randn(5, 50, generator=rng), torch.randn(2, 50, generator=rng)
    read = DraftDistribution(rows[0], lambda row_V: (2 * row_V).softmax(-1))
    accepted, in_torch = set(), ExactSampler(ExactConfig("torch"), SAMPLED)
    for seed in range(300):
        drawn = [
            in_torch.draw_different(distribution, 2, rng) for distribution in (read, in_torch.distribution(rows[1]))
        ]
        numbers = torch.rand(5, generator=rng, dtype=torch.float64).tolist()

        def answer_of(sampler: Sampler, drawn: list[list[int]] = drawn, numbers: list[float] = numbers) -> list[int]:
            builder = TreeBuilder(0)
            for sequence, distribution in enumerate((read, sampler.distribution(rows[1]))):
                for token in drawn[sequence]:
                    builder.add(0, token, "without_replacement", distribution, sequence=sequence)
            return answer(sampler, builder.build().tree, target_NV, numbers)

        if len({*drawn[0], *drawn[1]}) == 4:
            expected = answer_of(in_torch)
            assert answer_of(native(SAMPLED)) == expected, seed
            accepted |= {[*drawn[0], *drawn[1]].index(expected[0])} if len(expected) > 1 else set()
    assert accepted == {0, 1, 2, 3} and made


def test_rows_that_are_not_usable_are_named() -> None:
    sampler, target_NV, draft_V = native(SAMPLED), torch.zeros(3, 400), torch.zeros(400)
    with pytest.raises(UnusableLogits, match="^row 0 of the logits"):
        answer(sampler, tree_of(sampler, draft_V), target_NV.index_fill(1, torch.tensor([7]), torch.nan), [0.5] * 3)
    draft_V[7] = torch.inf
    with pytest.raises(UnusableLogits, match=r"^draft, row 0 of the logits|row 0 of the draft") as raised:
        answer(sampler, tree_of(sampler, draft_V), target_NV, [0.5] * 3)
    assert raised.value.row == 0
    # a row that no rule reads may be what it likes
    target_NV[2] = torch.nan
    assert answer(sampler, tree_of(sampler, torch.zeros(400)), target_NV, [0.5, 0.5, 0.5])[0] == 3


def test_a_token_that_its_distribution_could_not_give() -> None:
    draft_V = torch.zeros(400)
    draft_V[3] = -torch.inf
    sampler = native(SAMPLED)
    with pytest.raises(ValueError, match="tree node 1: drafter '' says that it drew token 3 .* probability 0"):
        answer(sampler, tree_of(sampler, draft_V), torch.zeros(3, 400), [0.5] * 3)


@pytest.mark.parametrize("q_V", [torch.full((300,), 1 / 300), SomeLogits(torch.zeros(9), None, 500)], ids=str)
def test_a_distribution_over_other_tokens(q_V: torch.Tensor | SomeLogits) -> None:
    builder, sampler = TreeBuilder(0), native(SAMPLED)
    given = sampler.distribution(q_V) if isinstance(q_V, SomeLogits) else q_V
    builder.add(0, 3, "with_replacement", given)
    with pytest.raises(
        ValueError, match=r"^tree node 1: its distribution has shape \[[35]00\], the target's .* \[400\]"
    ):
        answer(sampler, builder.build().tree, torch.zeros(2, 400), [0.5, 0.5])


@pytest.mark.parametrize("draws", [1, 2])
def test_probabilities_that_are_no_numbers(draws: int) -> None:
    q_V = torch.full((400,), torch.nan)
    q_V[3] = 0.5
    builder = TreeBuilder(0)
    builder.add(0, 3, "with_replacement", q_V, "liar")
    if draws == 2:
        builder.add(0, 4, "chosen")
    for sampler in (native(SAMPLED), ExactSampler(ExactConfig("torch"), SAMPLED)):
        with pytest.raises(ValueError, match="tree node 1: drafter 'liar' says that it drew token 3 .* NaN elsewhere"):
            answer(sampler, builder.build().tree, torch.zeros(1 + draws, 400), [0.9] * draws + [0.5])


def test_what_is_left_to_torch(made: list[int]) -> None:
    tree = TokenTree.root_only(0)
    for sampler, dtype in (
        (SigmoidSampler(SigmoidConfig("torch"), SAMPLED), torch.float32),
        (native(SAMPLED), torch.float64),
        (native(SAMPLED), torch.float16),
    ):
        sampler.ops = NativeOps(CpuOps())
        assert answer(sampler, tree, torch.tensor([[0.0, 30.0, 1.0]], dtype=dtype), [0.5]) == [1]
    assert not made


def test_what_the_doctor_runs_finds_a_wrong_row(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuBackend(CpuConfig())
    check_rule(backend, "multi_step", reference_sampler)
    assert made
    assert check_drawing(backend) and not check_drawing(CpuBackend(CpuConfig(native=False)))
    with monkeypatch.context() as patch:
        patch.setattr(Mass, "remove", lambda own, token: None)
        with pytest.raises(AssertionError, match="rule 'multi_step'"):
            check_rule(backend, "multi_step", reference_sampler)
        with pytest.raises(AssertionError, match="without its likeliest token"):
            check_drawing(backend)
    for name, wrong, words in (
        ("draw", lambda own, uniform: 0, "whose share of the numbers"),
        ("probability", lambda own, token: 1e-3, "a probability is off"),
        ("of_logits", lambda own, logits, shaping: 1.0, "a probability is off"),
    ):
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match=words):
            patch.setattr(Mass, name, wrong)
            check_drawing(backend)
