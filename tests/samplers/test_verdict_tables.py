"""Verdicts whose trees lie in tables of fixed sizes: captured once, with a pass, and replayed for other trees.

Legend: B requests, N rows of a request, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.testing import StaticOps, no_waiting, repeated
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler

pytest.importorskip("triton")

from spec_sdk_backends.fused_rejection import decide, gather_trees
from spec_sdk_backends.verdict_tables import TableSizes, VerdictTables

SAMPLED = SamplingParams(temperature=0.9)
B, N, V = 2, 8, 96
SIZES = TableSizes(requests=B, rows=N, draws=10, distributions=6, most=4, vocabulary=V)


def drawn(seed: int, device: torch.device, given: bool = False, vocabulary: int = V) -> TokenTree:
    """A drawn token, some drawn from one distribution without replacement, a chosen one; of other sizes every time."""
    rng = torch.Generator().manual_seed(seed)
    sampler, builder = ExactSampler(ExactConfig("torch"), SAMPLED), TreeBuilder(3)
    rows_2V = 2 * torch.randn((2, vocabulary), generator=rng)
    first, second = (sampler.distribution(row_V.to(device)) for row_V in rows_2V)
    token = sampler.draw_from(first, rng)
    child = builder.add(0, token, "with_replacement", rows_2V[0].softmax(-1).to(device) if given else first)
    for token in second.q_V.cpu().topk(1 + seed % 3).indices.tolist():
        builder.add(child, token, "without_replacement", second, sequence=0)
    if seed % 2:
        builder.add(0, (seed * 7) % vocabulary, "chosen")
    return builder.build().tree


def step(seed: int, device: torch.device, given: bool = False) -> tuple[list[TokenTree], list[torch.Tensor]]:
    trees = [drawn(1000 * b + seed, device, given) for b in range(B)]
    rng = torch.Generator().manual_seed(seed)
    return trees, [torch.rand(tree.first_draw_N1[-1] + 1, generator=rng, dtype=torch.float64) for tree in trees]


def eager(
    trees: Sequence[TokenTree],
    logits_BNV: torch.Tensor,
    uniform_BD: Sequence[torch.Tensor],
    sigmoid: tuple[float, float] | None = None,
) -> list[list[int]]:
    """Verdicts of the launches that know the trees, their nodes numbered by rows."""
    rows = [logits_BNV[b, : tree.size].clone() for b, tree in enumerate(trees)]
    verdicts = decide(gather_trees(trees, rows, uniform_BD, SAMPLED, sigmoid is not None), SAMPLED, sigmoid).tolist()
    before = [0, trees[0].size]
    assert all(fault == -1 for _, _, fault in verdicts)
    return [[node - before[b] + b * N, token, fault] for b, (node, token, fault) in enumerate(verdicts)]


@pytest.mark.parametrize("sigmoid", [None, (-20.0, 20.0)], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("given", [False, True])
def test_verdicts_are_those_of_launches_that_know_the_trees(
    given: bool, sigmoid: tuple[float, float] | None, device: torch.device
) -> None:
    """Logits of padding, and what an earlier, larger step left in the tables, are read by nobody."""
    tables = VerdictTables(SIZES, SAMPLED, device, torch.float32, sigmoid, given)
    nodes = set()
    for seed in (2, 5, 3, 4, 9):
        trees, uniform_BD = step(seed, device, given)
        logits_BNV = torch.randn((B, N, V), generator=torch.Generator().manual_seed(seed + 50)).to(device)
        for b, tree in enumerate(trees):
            for node, draws in enumerate(tree.draws_N):
                # so near to what was drafted that much of it is accepted
                if draws and draws[0].q_V is not None:
                    logits_BNV[b, node] = 0.5 * logits_BNV[b, node] + SAMPLED.temperature * draws[0].q_V.log()
            logits_BNV[b, tree.size :] = float("nan")
        tables.fill(trees, uniform_BD)
        with no_waiting():
            verdict_B3 = tables.decide(logits_BNV)
        found = verdict_B3.tolist()
        assert found == eager(trees, logits_BNV, uniform_BD, sigmoid)
        nodes |= {node % N for node, _, _ in found}
    assert len(nodes) > (2 if sigmoid is None else 1), "roots and drafted tokens are among the last accepted"


def test_a_fault_is_told_by_its_row(device: torch.device) -> None:
    tables = VerdictTables(SIZES, SAMPLED, device, torch.float32)
    trees, uniform_BD = step(4, device)
    logits_BNV = torch.zeros((B, N, V), device=device)
    logits_BNV[1, 0] = float("nan")
    tables.fill(trees, uniform_BD)
    first, second = tables.decide(logits_BNV).tolist()
    assert first[2] == -1 and second[2] == N
    source = trees[0].draws_N[0][0].source
    assert source is not None and not isinstance(source, torch.Tensor)
    source.logits_V[:] = float("nan")
    tables.fill(trees, uniform_BD)
    assert tables.decide(torch.zeros((B, N, V), device=device))[0, 2] == B * N


CHANGES: dict[str, Callable[[torch.device], tuple[Sequence[TokenTree], str]]] = {
    "requests": lambda device: ([drawn(1, device)], "1 requests, and not 2"),
    "rows": lambda device: ([TokenTree.chain(0, list(range(N))), drawn(1, device)], "9 rows"),
    "draws": lambda device: ([TokenTree.chain(0, list(range(6)))] * 2, "12 draws"),
    "vocabulary": lambda device: ([drawn(1, device, vocabulary=V - 16)] * 2, "is not one of the target's 96"),
    "given": lambda device: ([drawn(1, device, given=True)] * 2, "given as probabilities"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_is_refused_and_leaves_the_tables(change: str, device: torch.device) -> None:
    tables = VerdictTables(SIZES, SAMPLED, device, torch.float32)
    trees, uniform_BD = step(5, device)
    tables.fill(trees, uniform_BD)
    logits_BNV = torch.randn((B, N, V), generator=torch.Generator().manual_seed(1)).to(device)
    before = tables.decide(logits_BNV).tolist()
    others, message = CHANGES[change](device)
    with pytest.raises(ValueError, match=message):
        tables.fill(others, [torch.rand(other.first_draw_N1[-1] + 1, dtype=torch.float64) for other in others])
    assert tables.decide(logits_BNV).tolist() == before
    with pytest.raises(ValueError, match="are not those that the tables were made for"):
        tables.decide(logits_BNV[:, 1:])
    with pytest.raises(ValueError, match="top-k"):
        VerdictTables(SIZES, SamplingParams(temperature=1.0, top_k=5), device, torch.float32)


def test_a_captured_step_has_its_verdict(device: torch.device) -> None:
    """One capture serves steps with other tokens, trees and draft rows; nothing in it waits, and each one's verdict is
    that of launches after its pass.
    """
    if device.type == "cuda":
        from spec_sdk_backends.cuda_graphs import GraphCapture

        capture = GraphCapture(device)
    made = GraphExecutor(
        load_decoder(RandomWeights(TINY, 0), device, torch.float32),
        StaticOps(),
        capture if device.type == "cuda" else repeated,
    )
    vocabulary = TINY.vocab_size
    sizes = TableSizes(requests=1, rows=N, draws=N, distributions=4, most=4, vocabulary=vocabulary)
    tables = VerdictTables(sizes, SAMPLED, device, torch.float32)
    plan = PassPlan(SequentialRunner(), epilogue=tables.decide)
    cache = made.new_cache()
    cache.reserve(1, 64)
    answers = set()
    for seed in (3, 5, 9):
        tree = drawn(seed, device, vocabulary=vocabulary)
        uniform_D = torch.rand(
            tree.first_draw_N1[-1] + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        rows = RequestRows.tree(0, 0, tree.token_N, tree.depth_N, tree.end_N)
        inputs = PassInputs.of("tree", [rows], device, rows=N, slots=N)
        tables.fill([tree], [uniform_D])
        output = made.forward(inputs, cache, plan)
        assert output.made is not None
        expected = decide(gather_trees([tree], [output.logits_BNV[0, : tree.size]], [uniform_D], SAMPLED), SAMPLED)
        assert output.made.tolist() == expected.tolist()
        answers.add(str(output.made.tolist()))
    assert made.captures == 1 and len(answers) > 1
