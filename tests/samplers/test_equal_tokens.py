"""The fused samplers give the reference's tokens for the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from tests.samplers.random_cases import KINDS, Case, is_at_a_border, make_case

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
    from spec_sdk_samplers.chain_verdicts import decide, gather_chains

    target, draft = case.target_BRV.to(device), case.draft_BGV.to(device)
    rows = [
        None if chosen else row_V
        for draft_GV, chosen_G in zip(draft, case.chosen_BG, strict=True)
        for row_V, chosen in zip(draft_GV, chosen_G, strict=True)
    ]
    tokens = [token for token_G in case.token_BG for token in token_G]
    chains = gather_chains(
        [row_V for rows_RV in target for row_V in rows_RV], rows, tokens, case.uniform_BR, case.params
    )
    verdicts = decide(chains, case.params).tolist()
    assert all(unusable == -1 for _, _, unusable in verdicts)
    return [[*case.token_BG[b][:accepted], token] for b, (accepted, token, _) in enumerate(verdicts)]


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
    row_V, u = torch.tensor([[0.0, 1.0, 2.0]], device=device), torch.tensor([0.5], dtype=torch.float64)
    plain: Sampler = ExactSampler(ExactConfig("triton"), SamplingParams(temperature=1.0))
    from spec_sdk.tree import TokenTree

    assert plain.rejection(TokenTree.root_only(0), row_V, u) == ([0], 2)


def test_every_kind_of_laws_is_among_the_cases() -> None:
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
    law_V = ReferenceSampler(None, case.params).probabilities(case.target_BRV[0])[len(right) - 1]
    wrong = [*right[:-1], (right[-1] + law_V.shape[0] // 2) % law_V.shape[0]]
    assert not is_at_a_border(case, 0, wrong, right)
