"""Recovery from a missed prediction without asking the host: against float64, and against the runner that chooses.

Legend: L layers, B requests, N rows of a request, M model dim, I MLP dim, H query heads, D head dim.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from spec_sdk.contracts import PassInputs, PassPlan
from spec_sdk.errors import UserError
from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops, host_reads
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import RequestRows
from spec_sdk.testing import StaticOps, no_waiting, repeated
from spec_sdk_backends import recovery
from spec_sdk_backends.overlapped_speculation import OverlappedSpeculationRunner
from spec_sdk_backends.recovery import recover, unrecoverable_because
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.kernels.dense_attention import depths, ends, random_tree, relative_error, star
from tests.support.tiny_decoder import ModelTensors, tiny_decoder

H, D, M, I = 3, 8, 40, 70  # noqa: E741
TOLERANCE = 1e-5


def block(activation: Any, device: torch.device, seed: int = 0) -> Any:
    """A decoder of one block, as far as recovery looks at it; one of its products has a bias."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(device)

    mlp = GatedMLP(Projection(random(2 * I, M)), Projection(random(M, I)), activation)
    weights = SimpleNamespace(output=Projection(random(M, H * D), random(M)), mlp=mlp, post_norm_M=1 + random(M))
    return SimpleNamespace(blocks=[weights], config=SimpleNamespace(rms_norm_eps=1e-5))


def in_float64(decoder: Any, h_BNM: torch.Tensor, o_BNHD: torch.Tensor) -> torch.Tensor:
    w = decoder.blocks[0]

    def product(projection: Projection, x: torch.Tensor) -> torch.Tensor:
        bias = projection.bias_O
        return F.linear(x, projection.weight_OI.double(), None if bias is None else bias.double())

    h = h_BNM.double() + product(w.output, o_BNHD.flatten(2).double())
    x = h * (h.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w.post_norm_M.double()
    gate, up = product(w.mlp.gate_up, x).chunk(2, -1)
    gate = F.silu(gate) if w.mlp.activation == "silu" else F.gelu(gate, approximate="tanh")
    return h + product(w.mlp.down, gate * up)


@pytest.mark.parametrize(("rows", "activation"), [(1, "silu"), (7, "gelu_tanh"), (13, "silu")])
def test_what_was_missed_is_redone_and_nothing_else(
    rows: int, activation: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of three requests in one block of a product, and in several; every mixture of hits."""
    monkeypatch.setattr(recovery, "MOST_ROWS", 16)
    decoder, generator = block(activation, device), torch.Generator().manual_seed(rows)
    h_BNM = torch.randn((3, rows, M), generator=generator).to(device)
    o_BNHD = torch.randn((3, rows, H, D), generator=generator).to(device)
    expected_BNM = in_float64(decoder, h_BNM, o_BNHD)
    for hits in ([False, True, False], [True, True, False], [False] * 3):
        guessed_BNM = torch.randn((3, rows, M), generator=generator).to(device)
        out_BNM, hit_B = guessed_BNM.clone(), torch.tensor(hits, device=device)
        with no_waiting():
            recover(decoder, 0, h_BNM, o_BNHD, hit_B, out_BNM)
        assert torch.equal(out_BNM[hit_B], guessed_BNM[hit_B])
        assert relative_error(out_BNM[~hit_B], expected_BNM[~hit_B].cpu()) < TOLERANCE


def sevens(like: torch.Tensor, shape: Any, device: Any = None) -> torch.Tensor:
    """In the place of ``Tensor.new_empty``, for which Triton's interpreter has a use of its own."""
    return torch.full(shape if isinstance(shape, tuple) else (shape,), 7.0, device=device or like.device).to(like.dtype)


def test_programs_of_a_hit_read_no_weights(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor write: weights of NaN, and memory that would show what a launch on the way had stored."""
    decoder = block("silu", device)
    w = decoder.blocks[0]
    for projection in (w.output, *w.mlp.projections):
        projection.weight_OI.fill_(float("nan"))
    out_BNM = torch.ones((2, 1, M), device=device)
    made: list[torch.Tensor] = []
    product = recovery._product

    def noted(*arguments: Any) -> torch.Tensor:
        made.append(product(*arguments))
        return made[-1]

    monkeypatch.setattr(recovery, "_product", noted)
    monkeypatch.setattr(torch.Tensor, "new_empty", sevens)
    rest = torch.zeros((2, 1, M), device=device), torch.zeros((2, 1, H, D), device=device)
    recover(decoder, 0, *rest, torch.tensor([True, True], device=device), out_BNM)
    assert (out_BNM == 1).all() and all((tensor == 7).all() for tensor in made[:-1]) and len(made) == 3
    recover(decoder, 0, *rest, torch.tensor([True, False], device=device), out_BNM)
    assert (out_BNM[0] == 1).all() and out_BNM[1].isnan().all()


PLAIN = SequentialRunner()
ENDS, MIXED = 6, 0.485
"""Of the two passes that share a capture, one misses twice and the other once, by a clear margin."""
TREES = (random_tree(7, seed=2), star(5), random_tree(8, seed=3))


def passes(executor: TorchExecutor, runner: Any) -> list[PassOutput]:
    """A prompt for each of two requests, in slots out of order, then trees behind one or both of them."""
    cache, prompts = executor.new_cache(), {2: 40, 0: 9}
    cache.reserve(3, 128)
    generator = torch.Generator().manual_seed(0)
    token = torch.randint(0, executor.vocabulary, (64,), generator=generator).tolist()
    for slot, length in prompts.items():
        rows = RequestRows.chain(slot, 0, token[:length])
        TorchExecutor.forward(executor, PassInputs.of("chain", [rows], executor.device), cache, PassPlan(PLAIN))
    found = []
    for turn, trees in enumerate(({2: TREES[0], 0: TREES[1]}, {0: TREES[1], 2: TREES[2]}, {2: TREES[1]})):
        requests = [
            RequestRows.tree(slot, prompts[slot], token[9 * turn :][: len(tree)], depths(tree), ends(tree))
            for slot, tree in trees.items()
        ]
        inputs = PassInputs.of("tree", requests, executor.device, rows=8, slots=8)
        output = executor.forward(inputs, cache, PassPlan(runner))
        live = [output.logits_BNV[b, : len(tree)] for b, tree in enumerate(trees.values())]
        found.append(dataclasses.replace(output, logits_BNV=torch.cat(live)))
    return found


def verifier(threshold: float) -> L2Threshold:
    return L2Threshold(L2ThresholdConfig(threshold=threshold, never=[1]))


@pytest.mark.parametrize("threshold", [MIXED, *(pytest.param(one, marks=pytest.mark.full) for one in (0.0, 1e9))])
def test_captured_passes_are_those_of_the_runner_that_chooses(threshold: float, device: torch.device) -> None:
    """One capture for all passes of a size, with hits and misses of their own; nothing in it waits for the host."""
    decoder = load_decoder(ModelTensors("smollm", 0), device, torch.float32).subset([0, 1, 2])
    chosen = passes(
        TorchExecutor(decoder, Ops()),
        AttentionSpeculativeRunner(lambda: AttentionSink(AttentionSinkConfig(size=ENDS)), verifier(threshold)),
    )
    runner = OverlappedSpeculationRunner(verifier(threshold), ENDS)
    made = GraphExecutor(decoder, StaticOps(), repeated)
    reads = host_reads.total()
    captured = passes(made, runner)
    assert made.captures == 2 and host_reads.total() == reads, "reports are read when they are looked at"
    assert not runner.reports(), "memory of a graph that the runner still had would outlive it"
    verdicts = []
    for one, other in zip(captured, chosen, strict=True):
        assert relative_error(one.logits_BNV, other.logits_BNV.double()) < 1e-4
        assert len(one.reports) == len(other.reports)
        for report, expected in zip(one.reports, other.reports, strict=True):
            assert report is not None and expected is not None
            assert (report.hit, report.space) == (expected.hit, expected.space)
            assert [None if e is None else len(e) for e in report.row_error] == [
                None if e is None else len(e) for e in expected.row_error
            ]
            for found, known in ((report.error, expected.error), (report.difference, expected.difference)):
                assert [None if value is None else pytest.approx(value, rel=1e-3) for value in known] == list(found)
            verdicts += [hit for hit in report.hit if hit is not None]
            assert report.hit[1] is None
    assert {0.0: {False}, MIXED: {False, True}, 1e9: {True}}[threshold] == set(verdicts)
    assert host_reads.total() == reads + len(captured), "one read of a pass for all its requests"


def test_what_cannot_be_redone_is_refused() -> None:
    decoder = tiny_decoder("gemma2")
    assert "norms of its outputs" in str(unrecoverable_because(decoder))
    assert unrecoverable_because(tiny_decoder()) is None
    behind = L2Threshold(dataclasses.replace(L2ThresholdConfig(), space="residual"))
    for other, judge, message in (
        (decoder, verifier(0.1), "norms of its outputs"),
        (tiny_decoder(), behind, "behind the output projection"),
    ):
        with pytest.raises(UserError, match=message):
            passes(TorchExecutor(other, Ops()), OverlappedSpeculationRunner(judge, ENDS))
