"""The sampling kernels on a GPU: large vocabularies, one transfer, no N x V memory. Skipped without one.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk_samplers.reference import ReferenceSampler
from tests.samplers.random_cases import is_at_a_border, make_case
from tests.samplers.test_equal_tokens import in_one_launch

pytest.importorskip("triton")

from spec_sdk.contracts import SamplingParams
from spec_sdk_samplers.chain_verdicts import decide, gather_chains

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SAMPLED = SamplingParams(temperature=1.0)


def test_random_cases_of_all_vocabularies(device: torch.device) -> None:
    differing = steps = 0
    for seed in range(400):
        case = make_case(seed, 1 << 21)
        expected = case.answers(ReferenceSampler(None, case.params))
        for b, (mine, theirs) in enumerate(zip(in_one_launch(case, device), expected, strict=True)):
            steps += 1
            if mine != theirs:
                assert is_at_a_border(case, b, mine, theirs), f"case {seed}, sequence {b}: {mine}, not {theirs}"
                differing += 1
    assert differing <= 1 + steps // 1000


def test_nothing_waits_for_the_host_and_no_law_is_written(device: torch.device) -> None:
    gamma, vocabulary = 5, 128_256
    target = torch.randn((gamma + 1, vocabulary), device=device, dtype=torch.bfloat16)
    draft = torch.randn((gamma, vocabulary), device=device, dtype=torch.bfloat16)
    uniform = torch.rand((1, gamma + 1), dtype=torch.float64)
    chains = gather_chains(list(target), list(draft), [1] * gamma, uniform, SAMPLED)
    expected = decide(chains, SAMPLED).tolist()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        verdict = decide(chains, SAMPLED)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before < vocabulary
    assert verdict.tolist() == expected
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decide(chains, SAMPLED)
    graph.replay()
    assert captured.tolist() == expected
