"""The sampling kernels on a GPU: large vocabularies, one transfer, no N x V memory. Skipped without one.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk_samplers.reference import ReferenceSampler
from tests.samplers.random_cases import VOCABULARIES, is_at_a_border, make_case, seeds_of
from tests.samplers.random_trees import is_allowed, make_tree_case
from tests.samplers.test_equal_tokens import in_one_launch, trees_in_one_launch

pytest.importorskip("triton")

from spec_sdk.contracts import SamplingParams, Verdict, Verifier
from spec_sdk.ops import host_reads
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import DrawKind, TokenTree, TreeBuilder
from spec_sdk_backends.fused_rejection import decide, gather_trees
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SAMPLED = SamplingParams(temperature=1.0)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_random_cases(vocabulary: int, device: torch.device, scale: Callable[[int, int], int]) -> None:
    """Nearly all the time is compilation, a variant per vocabulary, dtype and filters: hence a test per vocabulary,
    which processes share, and scaled counts.
    """
    differing = steps = 0
    for seed in seeds_of(vocabulary, scale(120, 400)):
        case = make_case(seed, 1 << 21)
        assert case.target_BRV.shape[-1] == vocabulary
        expected = case.answers(ReferenceSampler(None, case.params))
        for b, (mine, theirs) in enumerate(zip(in_one_launch(case, device), expected, strict=True)):
            steps += 1
            if mine != theirs:
                assert is_at_a_border(case, b, mine, theirs), f"case {seed}, sequence {b}: {mine}, not {theirs}"
                differing += 1
    assert differing <= 1 + steps // 1000


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_random_trees(vocabulary: int, device: torch.device, scale: Callable[[int, int], int]) -> None:
    differing = steps = 0
    for seed in seeds_of(vocabulary, scale(120, 400)):
        case = make_tree_case(seed, 1 << 21)
        assert case.target_BNV[0].shape[-1] == vocabulary
        expected = case.answers(ReferenceSampler(None, case.params))
        for b, (mine, theirs) in enumerate(zip(trees_in_one_launch(case, device), expected, strict=True)):
            steps += 1
            if mine != theirs:
                assert is_allowed(case, b, mine), f"case {seed}, tree {b}: {mine}, not {theirs}"
                differing += 1
    assert differing <= 1 + steps // 1000


def drafted(branches: int, depth: int, vocabulary: int, device: torch.device) -> TokenTree:
    """A chain, or a tree of ``branches`` draws without replacement at every node of the first path."""
    sampler, builder, node = ExactSampler(ExactConfig("triton"), SAMPLED), TreeBuilder(0), 0
    for _ in range(depth):
        distribution = sampler.distribution(torch.randn(vocabulary, device=device, dtype=torch.bfloat16))
        kind: DrawKind = "without_replacement" if branches > 1 else "with_replacement"
        children = [builder.add(node, token, kind, distribution) for token in range(1, branches + 1)]
        node = children[0]
    return builder.build().tree


@pytest.mark.parametrize("branches", [1, 4])
def test_nothing_waits_for_the_host_and_no_distribution_is_written(branches: int, device: torch.device) -> None:
    vocabulary = 128_256
    tree = drafted(branches, 5, vocabulary, device)
    target = torch.randn((tree.size, vocabulary), device=device, dtype=torch.bfloat16)
    uniform_D = torch.rand(tree.first_draw_N1[-1] + 1, dtype=torch.float64)
    trees = gather_trees([tree], [target], [uniform_D], SAMPLED)
    expected = decide(trees, SAMPLED).tolist()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        verdict = decide(trees, SAMPLED)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before < vocabulary
    assert verdict.tolist() == expected
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decide(trees, SAMPLED)
    graph.replay()
    assert captured.tolist() == expected


@pytest.mark.parametrize("verifier", [MultiStep, NaiveTree])
def test_a_rule_in_torch_reads_the_logits_of_all_requests_at_once(
    verifier: type[Verifier], device: torch.device
) -> None:
    """And decides as it does where they lie in host memory to begin with."""

    def verdicts(where: torch.device) -> list[Verdict | Exception]:
        rng = torch.Generator().manual_seed(5)
        trees, logits, requests = [], [], []
        for number in range(4):
            sampler, builder = ReferenceSampler(None, SAMPLED), TreeBuilder(0)
            rows_NV = 2 * torch.randn((5, 1000), generator=rng)
            distribution = sampler.distribution(rows_NV[3].to(where))
            first = builder.add(0, int(rows_NV[3].argmax()), "with_replacement", distribution)
            builder.add(first, int(rows_NV[4].argmax()), "with_replacement", rows_NV[4].softmax(-1).to(where))
            trees.append(builder.build().tree)
            logits.append(rows_NV[:3].to(where))
            requests.append(request_for([1, 0], sampler, seed=number, slot=number).view)
        before = host_reads.total()
        found = verifier(None).verify(trees, logits, requests)
        assert host_reads.total() == before + 1
        return found

    here, there = verdicts(torch.device("cpu")), verdicts(device)
    for one, other in zip(here, there, strict=True):
        assert isinstance(one, Verdict) and isinstance(other, Verdict) and one.tokens == other.tokens


def test_one_read_brings_several_tensors_whole(device: torch.device) -> None:
    tensors = [torch.arange(n, device=device).float() for n in (1, 1000, 1 << 20)]
    host = host_reads.read(*(tensor * 3 for tensor in tensors), torch.ones(2))
    assert all(tensor.device.type == "cpu" for tensor in host)
    expected = [*(torch.arange(n).float() * 3 for n in (1, 1000, 1 << 20)), torch.ones(2)]
    assert all(map(torch.equal, host, expected))
