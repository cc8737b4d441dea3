"""The fused samplers give the reference's tokens for the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.ops import residual, without
from spec_sdk.testing import PlannedDraw, TableDrafter, TableModel
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidConfig, SigmoidSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.samplers.random_cases import KINDS, Case, accepted, distribution64, is_at_a_border, make_case
from tests.samplers.random_trees import WAYS, TreeCase, is_allowed, make_tree_case

FEW = 1e-3
"""Largest share of steps that may differ, each of them at a border."""


def differing(cases: Sequence[Case], answers: Callable[[Case], list[list[int]]]) -> tuple[int, int]:
    """Steps and how many of them differ from the reference's. AssertionError for one that float64 does not excuse."""
    steps = excused = 0
    for number, case in enumerate(cases):
        expected = case.answers(ReferenceSampler(None, case.params))
        for b, (mine, theirs) in enumerate(zip(answers(case), expected, strict=True)):
            steps += 1
            if mine != theirs:
                assert is_at_a_border(case, b, mine, theirs), f"case {number}, sequence {b}: {mine}, not {theirs}"
                excused += 1
    return steps, excused


def on_the_cpu(case: Case) -> list[list[int]]:
    return case.answers(ExactSampler(ExactConfig("torch"), case.params))


def in_one_launch(case: Case, device: torch.device) -> list[list[int]]:
    """All sequences of a case by the kernels together."""
    target, draft = case.target_BRV.to(device), case.draft_BGV.to(device)
    here = replace(case, draft_BGV=draft)
    trees = here.trees(ExactSampler(ExactConfig("triton"), case.params))
    return decided_together(trees, list(target), list(case.uniform_BR), case.params)


def trees_in_one_launch(case: TreeCase, device: torch.device) -> list[list[int]]:
    """All trees of a case by the kernels together."""
    drafts = [[row_V.to(device) for row_V in rows_SV] for rows_SV in case.draft_BSV]
    here = replace(case, draft_BSV=drafts)
    sampler = ExactSampler(ExactConfig("triton"), case.params)
    trees = [here.tree(b, here.distributions(b, sampler)) for b in range(len(case.plan_B))]
    return decided_together(trees, [rows.to(device) for rows in case.target_BNV], case.uniform_BD, case.params)


def decided_together(
    trees: list[TokenTree], logits_BNV: list[torch.Tensor], uniform_BD: list[torch.Tensor], params: SamplingParams
) -> list[list[int]]:
    from spec_sdk_backends.fused_rejection import decide, gather_trees

    verdicts = decide(gather_trees(trees, logits_BNV, uniform_BD, params), params).tolist()
    answers, before = [], 0
    for tree, (node, token, fault) in zip(trees, verdicts, strict=True):
        assert fault == -1
        answers.append([*(tree.token_N[i] for i in tree.path_to(node - before)[1:]), token])
        before += tree.size
    return answers


def differing_trees(cases: Sequence[TreeCase], answers: Callable[[TreeCase], list[list[int]]]) -> tuple[int, int, int]:
    """Trees, how many differ from the reference's, and drafted tokens accepted. AssertionError for one that float64
    does not allow.
    """
    steps = excused = kept = 0
    for number, case in enumerate(cases):
        expected = case.answers(ReferenceSampler(None, case.params))
        for b, (mine, theirs) in enumerate(zip(answers(case), expected, strict=True)):
            steps, kept = steps + 1, kept + len(mine) - 1
            if mine != theirs:
                assert is_allowed(case, b, mine), f"case {number}, tree {b}: {mine}, not {theirs}"
                excused += 1
    return steps, excused, kept


def test_hundreds_of_random_cases() -> None:
    steps, excused = differing([make_case(seed, 1 << 17) for seed in range(300)], on_the_cpu)
    assert steps > 300 and excused <= 1 + FEW * steps


@pytest.mark.full
def test_ten_thousand_random_cases(record_property: Callable[[str, object], None]) -> None:
    steps = excused = 0
    for seed in range(1000, 11_000):
        more, also = differing([make_case(seed, 1 << 20)], on_the_cpu)
        steps, excused = steps + more, excused + also
        if seed % 500 == 0:
            print(f"{seed}: {steps} steps, {excused} differ", flush=True)
    record_property("steps", steps)
    record_property("excused", excused)
    print(f"\n{steps} steps in 10,000 cases, {excused} differ, all within 1e-6 of a threshold")
    assert excused <= FEW * steps


def test_the_kernels_on_random_cases(device: torch.device, scale: Callable[[int, int], int]) -> None:
    pytest.importorskip("triton")
    cases = [make_case(seed, 1 << 13, largest=4099) for seed in range(scale(8, 300))]
    steps, excused = differing(cases, lambda case: in_one_launch(case, device))
    assert steps > len(cases) and excused <= 1 + FEW * steps


def test_the_kernels_in_the_walk(device: torch.device) -> None:
    """As a verifier calls them: one chain at a time, and the root alone of a plain decoding step."""
    pytest.importorskip("triton")
    for seed in (3, 5):
        case = make_case(seed, 1 << 12, largest=1025)
        sampler = ExactSampler(ExactConfig("triton"), case.params)
        assert case.answers(sampler) == case.answers(ReferenceSampler(None, case.params))
    plain = ExactSampler(ExactConfig("triton"), SamplingParams(temperature=1.0))
    assert accepted(plain, TokenTree.root_only(0), torch.tensor([[0.0, 1.0, 2.0]], device=device), [0.5]) == ([0], 2)


def test_one_sampler_in_several_threads() -> None:
    """Rows are written to memory that is used again: each thread must have its own."""
    cases = [make_case(seed, 1 << 16) for seed in (18, 21, 26)]
    for case in cases:
        assert case.target_BRV.shape[0] > 1
        sampler = ExactSampler(ExactConfig("torch"), case.params)
        expected = case.answers(ReferenceSampler(None, case.params))
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(case.answers, [sampler] * 12))
        assert answers == [expected] * 12


def test_random_trees() -> None:
    def on_the_cpu(case: TreeCase) -> list[list[int]]:
        return case.answers(ExactSampler(ExactConfig("torch"), case.params))

    cases = [make_tree_case(seed, 1 << 15) for seed in range(60)]
    steps, excused, kept = differing_trees(cases, on_the_cpu)
    assert steps > 60 and kept > 20 and excused <= 1 + FEW * steps
    # both walk by the same rule: what they agree on is judged by another one, in float64
    for case in cases:
        for b, answer in enumerate(on_the_cpu(case)):
            assert is_allowed(case, b, answer)


def test_the_kernels_on_random_trees(
    device: torch.device, scale: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    """Branches; draws with and without replacement, chosen, mixed, twice alike; logits and probabilities; filters."""
    pytest.importorskip("triton")
    cases = [make_tree_case(seed, 1 << 14, largest=1100) for seed in range(scale(9, 500))]
    assert {case.way for case in cases} == set(WAYS)
    steps, excused, kept = differing_trees(cases, lambda case: trees_in_one_launch(case, device))
    record_property("steps", steps)
    record_property("excused", excused)
    print(f"\n{steps} trees in {len(cases)} cases, {kept} tokens accepted, {excused} differ")
    assert steps > len(cases) and kept > len(cases) // 2 and excused <= 1 + FEW * steps


def test_the_sigmoid_kernels_on_random_trees(scale: Callable[[int, int], int]) -> None:
    """The tokens of the walk in torch. Where all scores saturate, float32 has many ties: scales of 1 to 10,000."""
    pytest.importorskip("triton")
    count = scale(6, 200)
    for seed in range(count):
        case = make_tree_case(seed, 1 << 13, largest=257)
        scales = (-(10.0 ** (seed % 5)), 10.0 ** (seed % 5))
        expected = case.answers(SigmoidSampler(SigmoidConfig("torch", *scales), case.params))
        assert case.answers(SigmoidSampler(SigmoidConfig("triton", *scales), case.params)) == expected, seed


def test_draft_rows_that_a_sigmoid_judges_are_read_for_their_filters_alone() -> None:
    """Their statistics nobody needs, but what is filtered out has no sigmoid."""
    pytest.importorskip("triton")
    from spec_sdk_backends.fused_rejection import NOWHERE, gather_trees

    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=3)):
        sampler, builder = SigmoidSampler(SigmoidConfig("torch"), params), TreeBuilder(0)
        builder.add(0, 4, "with_replacement", sampler.distribution(torch.arange(5.0)))
        trees = gather_trees(
            [builder.build().tree], [torch.zeros(2, 5)], [torch.rand(2).double()], params, sigmoid=True
        )
        assert [offset == NOWHERE for offset in trees.row_offset_R.tolist()] == [False, False, not params.filtered]


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("plan", ["nnnn", "ccc", "rgcn"])
def test_every_draw_is_judged_by_what_the_ones_before_left(plan: str, kernels: str) -> None:
    """n: without replacement, r: with, c: chosen, g: from given probabilities. Random numbers 0.1 % above the border of
    every draw before, and 0.1 % below that of the draw which must then be accepted.
    """
    if kernels == "triton":
        pytest.importorskip("triton")
    params = SamplingParams(temperature=1.0)
    reference, rng = ReferenceSampler(None, params), torch.Generator().manual_seed(3)
    logits_NV = 2.5 * torch.randn((len(plan) + 1, 1100), generator=rng)
    p_V = reference.probabilities(logits_NV[:1])[0]
    sampler = ExactSampler(ExactConfig(kernels), params)
    distribution = sampler.distribution(2.5 * torch.randn(1100, generator=rng))
    given_V = reference.probabilities(2.5 * torch.randn((1, 1100), generator=rng))[0]
    distribution.logits_V[p_V.argmin()] = 9.0
    # one chosen token of more than a half, and the distribution's likeliest of no more than the target's least
    logits_NV[0, 700] = float(logits_NV[0].logsumexp(0)) + 0.5
    p_V, left_V = reference.probabilities(logits_NV[:1])[0], distribution.q_V.clone()
    builder, borders = TreeBuilder(0), []
    for kind in plan:
        if kind == "c":
            token = int(p_V.argmax())
            builder.add(0, token, "chosen")
            borders.append(float(p_V[token]))
            p_V = without(p_V, token)
            continue
        q_V = {"n": left_V, "r": distribution.q_V, "g": given_V}[kind]
        token = int((q_V * (p_V > 0) * (p_V < 0.9 * q_V)).argmax())
        builder.add(
            0,
            token,
            "without_replacement" if kind == "n" else "with_replacement",
            given_V if kind == "g" else distribution,
        )
        borders.append(float(p_V[token] / q_V[token]))
        p_V = residual(p_V, q_V)
        if kind == "n":
            left_V = without(left_V, token)
    tree = builder.build().tree
    assert all(0 < border < 0.95 for border in borders) and tree.size == len(plan) + 1
    for last in range(len(plan)):
        uniforms = [border * (0.999 if i == last else 1.001) for i, border in enumerate(borders)]
        assert accepted(sampler, tree, logits_NV, [*uniforms, 0.5])[0] == [0, last + 1], borders


def test_a_distribution_drawn_from_in_both_ways() -> None:
    """What the sampler remembers of a draw with replacement is of all the distribution, not of what siblings left."""
    params = SamplingParams(temperature=1.0)
    exact, reference = ExactSampler(None, params), ReferenceSampler(None, params)
    plan = [[PlannedDraw("without_replacement"), PlannedDraw("without_replacement"), PlannedDraw("with_replacement")]]
    repeated = 0
    for seed in range(300):
        drafter, target = TableDrafter([TableModel(6, seed)], plan), TableModel(6, seed + 1000)
        request = request_for([1, 2], exact, seed)
        (tree,) = drafter.propose([request.view], [Budget(1)])
        _, second, last = tree.draws_N[0]
        repeated += second.node == last.node
        logits_NV = torch.stack([target.logits([tree.token_N[i] for i in tree.path_to(n)]) for n in range(tree.size)])
        answers = [
            MultiStep(None).verify_one(tree, logits_NV.clone(), request_for([1, 2], sampler, seed).view).tokens
            for sampler in (exact, reference)
        ]
        assert answers[0] == answers[1], seed
    assert repeated > 30


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("temperature", [1e-38, 1e-3, 0.011, 0.3])
def test_a_low_temperature_loses_no_digits(temperature: float, kernels: str) -> None:
    """Logits near 20, each judged as a chosen token a little below and above its probability in float64."""
    if kernels == "triton":
        pytest.importorskip("triton")
    params = SamplingParams(temperature=temperature)
    row_V = 20 + 1.5 * temperature * torch.randn(33, generator=torch.Generator().manual_seed(5))
    p_V, _ = distribution64(row_V, params)
    sampler = ExactSampler(ExactConfig(kernels), params)
    likely = [token for token in range(33) if p_V[token] > 0.01]
    assert len(likely) > 5
    for token in likely:
        tree = TokenTree.chain(0, [token])
        for uniform, length in ((float(p_V[token]) * (1 - 3e-6), 2), (float(p_V[token]) * (1 + 3e-6), 1)):
            assert len(accepted(sampler, tree, row_V.repeat(2, 1), [uniform, 0.5])[0]) == length, token


def test_a_tree_that_float64_refuses_is_not_excused() -> None:
    """The judge of trees must know a token that was never drafted and one that no distribution gives."""
    case = make_tree_case(4, 1 << 14, largest=1000)
    right = case.answer(0, ReferenceSampler(None, case.params))
    assert is_allowed(case, 0, right)
    vocabulary = case.target_BNV[0].shape[1]
    assert not is_allowed(case, 0, [*right[:-1], (right[-1] + vocabulary // 2) % vocabulary])
    assert not is_allowed(case, 0, [*right, 1])


def test_every_kind_of_distributions_is_among_the_cases() -> None:
    """A generator that has forgotten a kind would prove nothing of it."""
    cases = [make_case(seed, 1 << 16) for seed in range(200)]
    assert any(bool(torch.isinf(case.target_BRV).any()) for case in cases)
    assert any(torch.equal(case.target_BRV[:, :-1], case.draft_BGV) for case in cases)
    assert {case.target_BRV.dtype for case in cases} == {torch.float32, torch.bfloat16, torch.float16}
    assert max(case.target_BRV.shape[0] for case in cases) == 64
    assert max(case.draft_BGV.shape[1] for case in cases) == 20
    assert len(KINDS) == 6


def test_a_wrong_token_is_not_excused() -> None:
    """The float64 judge must refuse what is no rounding."""
    case = make_case(11, 1 << 14)
    right = case.answers(ReferenceSampler(None, case.params))[0]
    distribution_V = ReferenceSampler(None, case.params).probabilities(case.target_BRV[0])[len(right) - 1]
    wrong = [*right[:-1], (right[-1] + distribution_V.shape[0] // 2) % distribution_V.shape[0]]
    assert not is_at_a_border(case, 0, wrong, right)
