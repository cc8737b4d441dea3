"""Verdicts whose trees lie in tables of fixed sizes: captured once, with a pass, and replayed for other trees.

Legend: B requests, N rows of a request, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from spec_sdk.contracts import SamplingParams
from spec_sdk.errors import UnusableLogits
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ops import RULES, LogitsToCome, Ops, Recipe, ScoredTree, UnscoredTree, read_decisions
from spec_sdk.ops.in_pass import OnceDrawn
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.testing import StaticOps, no_waiting, repeated
from spec_sdk.testing.backends import check_rule_in_pass
from spec_sdk.testing.defaults import reference_sampler
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler

pytest.importorskip("triton")

from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.fused_rejection import decide, gather_trees
from spec_sdk_backends.triton_ops import TritonOps
from spec_sdk_backends.verdict_tables import TableSizes, VerdictTables
from spec_sdk_backends.verdicts_in_pass import MOST_SAMPLINGS

SAMPLED = SamplingParams(temperature=0.9)
FILTERED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95)
B, N, V = 2, 8, 96
SIZES = TableSizes(requests=B, rows=N, draws=10, distributions=6, most=4, vocabulary=V)


def drawn(
    seed: int, device: torch.device, given: bool = False, vocabulary: int = V, params: SamplingParams = SAMPLED
) -> TokenTree:
    """A drawn token, some drawn from one distribution without replacement, a chosen one; of other sizes every time."""
    rng = torch.Generator().manual_seed(seed)
    sampler, builder = ExactSampler(ExactConfig("torch"), params), TreeBuilder(3)
    rows_2V = 2 * torch.randn((2, vocabulary), generator=rng)
    first, second = (sampler.distribution(row_V.to(device)) for row_V in rows_2V)
    token = sampler.draw_from(first, rng)
    child = builder.add(0, token, "with_replacement", rows_2V[0].softmax(-1).to(device) if given else first)
    for token in second.q_V.cpu().topk(1 + seed % 3).indices.tolist():
        builder.add(child, token, "without_replacement", second, sequence=0)
    if seed % 2:
        builder.add(0, (seed * 7) % vocabulary, "chosen")
    return builder.build().tree


def step(
    seed: int, device: torch.device, given: bool = False, params: SamplingParams = SAMPLED
) -> tuple[list[TokenTree], list[torch.Tensor]]:
    trees = [drawn(1000 * b + seed, device, given, params=params) for b in range(B)]
    rng = torch.Generator().manual_seed(seed)
    return trees, [torch.rand(tree.first_draw_N1[-1] + 1, generator=rng, dtype=torch.float64) for tree in trees]


def eager(
    trees: Sequence[TokenTree],
    logits_BNV: torch.Tensor,
    uniform_BD: Sequence[torch.Tensor],
    sigmoid: tuple[float, float] | None = None,
    params: SamplingParams = SAMPLED,
) -> list[list[int]]:
    """Verdicts of the launches that know the trees, their nodes numbered by rows."""
    rows = [logits_BNV[b, : tree.size].clone() for b, tree in enumerate(trees)]
    verdicts = decide(gather_trees(trees, rows, uniform_BD, params, sigmoid is not None), params, sigmoid).tolist()
    before = [0, trees[0].size]
    assert all(fault == -1 for _, _, fault in verdicts)
    return [[node - before[b] + b * N, token, fault] for b, (node, token, fault) in enumerate(verdicts)]


@pytest.mark.parametrize("sigmoid", [None, (-20.0, 20.0)], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize(
    ("params", "given"),
    [(SAMPLED, False), (SAMPLED, True), (FILTERED, True)],
    ids=["logits", "probabilities", "filtered probabilities"],
)
def test_verdicts_are_those_of_launches_that_know_the_trees(
    params: SamplingParams, given: bool, sigmoid: tuple[float, float] | None, device: torch.device
) -> None:
    """Logits of padding, and what an earlier, larger step left in the tables, are read by nobody."""
    tables = VerdictTables(SIZES, params, device, torch.float32, sigmoid, given)
    nodes = set()
    for seed in (2, 5, 3, 4, 9):
        trees, uniform_BD = step(seed, device, given, params)
        logits_BNV = torch.randn((B, N, V), generator=torch.Generator().manual_seed(seed + 50)).to(device)
        for b, tree in enumerate(trees):
            for node, draws in enumerate(tree.draws_N):
                # so near to what was drafted that much of it is accepted
                if draws and draws[0].q_V is not None:
                    near_V = params.temperature * draws[0].q_V.log().to(device)
                    logits_BNV[b, node] = 0.5 * logits_BNV[b, node] + near_V
            logits_BNV[b, tree.size :] = float("nan")
        tables.fill(trees, uniform_BD)
        with no_waiting():
            verdict_B3 = tables.decide(logits_BNV)
        found = verdict_B3.tolist()
        assert found == eager(trees, logits_BNV, uniform_BD, sigmoid, params)
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


class Numbers:
    """A request's random numbers, of which it is noted how many were taken."""

    def __init__(self, seed: int) -> None:
        self.taken = 0
        self._rng = torch.Generator().manual_seed(seed)

    def __call__(self, count: int) -> list[float]:
        self.taken += count
        found: list[float] = torch.rand(count, generator=self._rng, dtype=torch.float64).tolist()
        return found


def unscored(tree: TokenTree, seed: int, params: SamplingParams = SAMPLED) -> UnscoredTree:
    return UnscoredTree(tree, Recipe(params), Numbers(seed))


def to_come(requests: int, device: torch.device) -> LogitsToCome:
    return LogitsToCome(requests, N, V, torch.float32, device)


UNFILTERED = (SAMPLED,) * 3
FILTERS = (FILTERED, replace(FILTERED, top_k=12), replace(FILTERED, top_k=0, min_p=0.02))


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("samplings", [UNFILTERED, FILTERS], ids=["plain", "filtered"])
def test_decisions_of_a_pass_are_those_after_it(
    samplings: tuple[SamplingParams, ...], requests: int, device: torch.device
) -> None:
    """By the reference's rule in torch with the same random numbers; steps of one size share what is captured, be
    their filters others.
    """
    ops, epilogues, accepted = TritonOps(decides_in_pass=True), set(), set()
    for seed, params in zip((2, 5, 3), samplings, strict=True):
        trees = [drawn(1000 * b + seed, device, params=params) for b in range(requests)]
        logits_BNV = torch.randn((requests, N, V), generator=torch.Generator().manual_seed(seed)).to(device)
        for b, tree in enumerate(trees):
            for node, draws in enumerate(tree.draws_N):
                if draws and draws[0].q_V is not None:
                    near_V = params.temperature * draws[0].q_V.log().to(device)
                    logits_BNV[b, node] = 0.5 * logits_BNV[b, node] + near_V
        inside = ops.accept_in_pass(
            "multi_step", [unscored(t, b, params) for b, t in enumerate(trees)], to_come(requests, device)
        )
        assert inside is not None
        epilogues.add(inside.epilogue)
        made = inside.epilogue(logits_BNV).cpu()
        sampler = ExactSampler(ExactConfig("torch"), params)
        for b, tree in enumerate(trees):
            scored = ScoredTree(tree, sampler.rows(tree, logits_BNV[b, : tree.size].clone()), Numbers(b))
            (expected,) = read_decisions(Ops().accept("multi_step", [scored]))
            path, token = inside.decision(b, made[b])
            assert (path, token) == expected
            accepted.add(len(path))
    assert len(epilogues) <= 2 and len(accepted) > 1


class OfKernels(CpuBackend):
    """The CPU backend with the operations of CUDA."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(CpuConfig(native=False))
        self._where = device

    @property
    def device(self) -> torch.device:
        return self._where

    @property
    def ops(self) -> Ops:
        return TritonOps(decides_in_pass=True)


def test_the_kit_s_check_of_verdicts_in_passes(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the doctor runs of them on a GPU, on fewer trees."""
    if device.type == "cpu":
        monkeypatch.setattr("spec_sdk.testing.backends.TREES", 8)
    backend = OfKernels(device)
    assert [check_rule_in_pass(backend, rule, reference_sampler) for rule in RULES].count(True) == 2


def test_what_a_pass_cannot_decide_takes_no_numbers(device: torch.device) -> None:
    """Several temperatures or filters at once, a distribution of other tokens, and a fifth temperature; and another
    rule than greedy where verdicts come after passes.
    """
    tree, other = drawn(3, device), drawn(3, device, vocabulary=V - 16)
    cold = SamplingParams(temperature=0.5)
    cases = (
        [unscored(tree, 0, FILTERED), unscored(tree, 1, replace(FILTERED, top_k=5))],
        [unscored(tree, 0), unscored(tree, 1, FILTERED)],
        [unscored(tree, 0), unscored(tree, 1, cold)],
        [unscored(other, 0)],
    )
    ops = TritonOps(decides_in_pass=True)
    for case in cases:
        assert ops.accept_in_pass("multi_step", case, to_come(len(case), device)) is None
        assert not any(one.uniforms.taken for one in case)  # type: ignore[attr-defined]
    for i in range(6):
        one = unscored(tree, 0, SamplingParams(temperature=0.6 + 0.1 * i))
        inside = ops.accept_in_pass("multi_step", [one], to_come(1, device))
        assert (inside is not None) == (i < MOST_SAMPLINGS) == bool(one.uniforms.taken)  # type: ignore[attr-defined]
    assert ops.accept_in_pass("naive", [unscored(tree, 0)], to_come(1, device)) is None
    assert TritonOps().accept_in_pass("multi_step", [unscored(tree, 0)], to_come(1, device)) is None


def test_a_pass_names_the_node_of_unusable_logits(device: torch.device) -> None:
    ops = TritonOps(decides_in_pass=True)
    trees = [drawn(4, device), drawn(1005, device)]
    inside = ops.accept_in_pass("multi_step", [unscored(t, b) for b, t in enumerate(trees)], to_come(2, device))
    assert inside is not None
    logits_BNV = torch.zeros((2, N, V), device=device)
    logits_BNV[1, 0] = float("nan")
    made = inside.epilogue(logits_BNV).cpu()
    assert inside.decision(0, made[0])[0][0] == 0
    with pytest.raises(UnusableLogits) as raised:
        inside.decision(1, made[1])
    assert raised.value.row == 0


def test_greedy_decisions_of_a_pass(device: torch.device) -> None:
    """Of two trees, padding left out; an unusable row is named."""
    trees = [TokenTree.chain(1, [4, 5]), TokenTree.chain(1, [9])]
    logits_BNV = torch.zeros((2, N, V), device=device)
    for b, n, token in ((0, 0, 4), (0, 1, 5), (0, 2, 6), (1, 0, 8), (1, 1, 3)):
        logits_BNV[b, n, token] = 1.0
    logits_BNV[:, 3:] = float("nan")
    params = SamplingParams()
    inside = Ops().accept_in_pass("greedy", [unscored(t, b, params) for b, t in enumerate(trees)], to_come(2, device))
    assert inside is not None
    with no_waiting():
        made = inside.epilogue(logits_BNV)
    made = made.cpu()
    assert inside.decision(0, made[0]) == ([0, 1, 2], 6)
    assert inside.decision(1, made[1]) == ([0], 8)
    logits_BNV[1, 1, 7] = float("inf")
    with pytest.raises(UnusableLogits) as raised:
        inside.decision(1, inside.epilogue(logits_BNV).cpu()[1])
    assert raised.value.row == 1


def test_tables_of_a_temperature_serve_no_other(device: torch.device) -> None:
    """What is captured for one would decide at it."""
    ops, tree = TritonOps(decides_in_pass=True), drawn(3, device)
    epilogues = []
    for temperature in (0.5, 2.0, 0.5):
        one = unscored(tree, 0, SamplingParams(temperature=temperature))
        inside = ops.accept_in_pass("multi_step", [one], to_come(1, device))
        assert inside is not None
        epilogues.append(inside.epilogue)
    assert epilogues[0] == epilogues[2] != epilogues[1]


def test_numbers_are_drawn_once() -> None:
    """A pass that failed over one request is made again for the others, with the numbers that they had."""
    numbers = Numbers(3)
    drawn_once = OnceDrawn(numbers)
    assert drawn_once(4) == drawn_once(4) and numbers.taken == 4
