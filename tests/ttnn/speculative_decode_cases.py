"""The operations of speculative flash decode beside the torch reference. Run by ``test_attention_speculation.py``.

Legend: N rows, H query heads, G KV heads, D head dim, C keys that a cache has room for, T tree slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from spec_sdk.ops import Ends, Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.types import SpeculativeAttention, relative_error
from spec_sdk_backends.ttnn.simulated import SimulatedOperations, load_simulator
from spec_sdk_backends.ttnn.speculative_decode import Exact, SpeculativeDecode, Window, shares_of

# the simulator warns of an operation that takes more buffers or memory than a node has
pytestmark = [
    pytest.mark.filterwarnings("error:Total DataflowBuffer"),
    pytest.mark.filterwarnings("error:Kernel defines"),
]
CPU = torch.device("cpu")
CAPACITY, HEAD_DIM = 416, 64
TREE_OF_40 = [40, 20, *range(3, 21), 40, *range(22, 41)]
"""Two chains under a root."""
# attention absolutely, norms as a share of themselves
TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (1e-2, 2e-2)}


@dataclass
class Case:
    """Committed keys, the pass's tree (one node: plain decoding), what a prediction reads, heads."""

    prefix: int
    end_N: list[int]
    ends: Ends
    H: int = 3
    G: int = 1
    workers: int = 3


CASES = {
    "one row, ends of half tiles": Case(100, [1], Ends(16, 16)),
    "uneven ends": Case(97, [1], Ends(4, 40)),
    "ends of whole tiles": Case(160, [1], Ends(32, 32), workers=1),
    "no first keys": Case(150, [1], Ends(0, 9), H=4, G=2),
    "one key between, in a tile with both ends": Case(41, [4, 3, 3, 4], Ends(20, 20)),
    "a tree": Case(200, [4, 3, 3, 4], Ends(32, 32), H=6, G=2),
    "two tiles of rows": Case(190, TREE_OF_40, Ends(50, 3), H=2, G=2, workers=2),
    "as many rows as a node has memory for": Case(60, [352] * 352, Ends(8, 8), G=1, H=1, workers=2),
    "more heads than rows of nodes": Case(70, [1], Ends(8, 8), H=9, G=3, workers=2),
}


class Run:
    """A case computed by the operations, and by torch in float64 from the same rounded numbers."""

    def __init__(self, case: Case, dtype: torch.dtype, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.mask = AttentionMask.tree(case.prefix, case.end_N, CPU)
        self.N, self.H, S = len(case.end_N), case.H, case.prefix + len(case.end_N)
        q_NHD = torch.randn(self.N, case.H, HEAD_DIM).to(dtype)
        k_CGD, v_CGD = (torch.randn(CAPACITY, case.G, HEAD_DIM).to(dtype) for _ in range(2))
        k_BGSD, v_BGSD = (x[:S].transpose(0, 1)[None].double() for x in (k_CGD, v_CGD))
        self.expected: SpeculativeAttention = reference(q_NHD[None].double(), k_BGSD, v_BGSD, self.mask, case.ends)
        to_device = SimulatedOperations(dtype).to_device
        self.q, self.k, self.v = (to_device(x.flatten(1)) for x in (q_NHD, k_CGD, v_CGD))
        self.decode = SpeculativeDecode(dtype, case.workers)
        self.heads = self.decode.heads(case.H, case.G, HEAD_DIM**-0.5)
        self.part = self.decode.part(case.prefix, self.mask.visible_NT(), case.ends)
        self.window: Window = self.decode.partial(self.q, self.k, self.v, self.part, self.heads)
        self.exact: Exact = self.decode.combine(self.q, self.k, self.v, self.part, self.window, self.heads)

    def on_host(self, x: Any) -> torch.Tensor:
        """Attention of the live rows [N, H, D]."""
        return x.to_torch()[: self.N].view(self.N, self.H, HEAD_DIM).double()

    def column(self, x: Any) -> torch.Tensor:
        """The first column of the live rows [N]."""
        return x.to_torch()[: self.N, 0].double()


def reference(
    q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, mask: AttentionMask, ends: Ends
) -> SpeculativeAttention:
    """Both attentions from dense masks."""
    R = q_BNHD.shape[2] // k_BGSD.shape[1]
    k_BHSD, v_BHSD = (x.repeat_interleave(R, 1) for x in (k_BGSD, v_BGSD))
    score_BHNS = q_BNHD.transpose(1, 2) @ k_BHSD.transpose(-1, -2) * HEAD_DIM**-0.5 + mask.bias_QS(torch.float64, 1)
    both = []
    for hidden in (slice(ends.first, mask.prefix - ends.last), slice(0)):
        score_BHNS_ = score_BHNS.clone()
        score_BHNS_[..., hidden] = float("-inf")
        both.append((score_BHNS_.softmax(-1) @ v_BHSD).transpose(1, 2))
    predicted, exact = both
    squares = ((predicted - exact).square().sum((-1, -2)), exact.square().sum((-1, -2)))
    return SpeculativeAttention(predicted, exact, *squares)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_prediction_attention_and_norms(name: str, dtype: torch.dtype) -> None:
    run, (attention, norms) = Run(CASES[name], dtype), TOLERANCES[dtype]
    verdict = run.decode.verify(run.exact, run.part, 1.0)
    expected = run.expected
    for found, right in (
        (run.window.predicted, expected.predicted_BNHD),
        (run.exact.o, expected.exact_BNHD),
    ):
        assert (run.on_host(found) - right[0]).abs().max() <= attention
        assert torch.corrcoef(torch.stack((run.on_host(found).flatten(), right.flatten())))[0, 1] >= 0.99
    for found, right in (
        (verdict.difference_sq, expected.difference_sq_BN),
        (verdict.norm_sq, expected.norm_sq_BN),
    ):
        error = run.column(found).sqrt() / right[0].sqrt() - 1
        assert error.abs().max() <= norms
    # per head too, before they are summed
    predicted, exact = expected.predicted_BNHD[0], expected.exact_BNHD[0]
    difference_NH = run.exact.difference_sq.to_torch()[: run.N].view(run.N, run.H, -1)[..., 0].double()
    right_NH = (predicted - exact).square().sum(-1)
    assert (difference_NH.sqrt() - right_NH.sqrt()).abs().max() <= norms


def test_torch_reference_agrees() -> None:
    """The same as ``Ops.speculative_attention``, which runs on backend=cpu."""
    case = CASES["a tree"]
    run = Run(case, torch.float32)
    q, k, v = (x.to_torch().float() for x in (run.q, run.k, run.v))
    k_BGSD, v_BGSD = (x[: run.mask.keys].view(-1, case.G, HEAD_DIM).transpose(0, 1)[None] for x in (k, v))
    ours = Ops().speculative_attention(
        q[None, : run.N].view(1, run.N, -1, HEAD_DIM), k_BGSD, v_BGSD, run.mask, case.ends
    )
    assert (run.on_host(run.window.predicted) - ours.predicted_BNHD[0]).abs().max() <= 1e-5
    assert (run.on_host(run.exact.o) - ours.exact_BNHD[0]).abs().max() <= 1e-5


def test_workers_share_the_keys() -> None:
    """Every tile once, nobody idle; more workers change the sums by rounding only."""
    assert shares_of(range(3, 10), 3) == [[3, 4], [5, 6], [7, 8, 9]]
    assert shares_of(range(2), 4) == [[0], [1]]
    case = CASES["a tree"]
    alone, together = (
        Run(Case(case.prefix, case.end_N, case.ends, case.H, case.G, workers), torch.float32) for workers in (1, 4)
    )
    assert len(together.part.shares) == 4 and len(alone.part.shares) == 1
    assert (alone.on_host(alone.exact.o) - together.on_host(together.exact.o)).abs().max() <= 1e-6


def test_padding_and_hidden_keys_change_nothing() -> None:
    """Neither what stands behind the tree in the cache, nor in rows of padding."""
    case = CASES["a tree"]
    clean, other = Run(case, torch.float32), Run(case, torch.float32)
    for cache in (other.k, other.v):
        cache.to_torch()[clean.mask.keys :] = 1e4
    other.q.to_torch()[clean.N :] = 7.0
    window = other.decode.partial(other.q, other.k, other.v, other.part, other.heads)
    exact = other.decode.combine(other.q, other.k, other.v, other.part, window, other.heads)
    assert torch.equal(clean.on_host(clean.window.predicted), other.on_host(window.predicted))
    assert torch.equal(clean.on_host(clean.exact.o), other.on_host(exact.o))
    verdicts = [run.decode.verify(found, run.part, 0.5) for run, found in ((clean, clean.exact), (other, exact))]
    assert torch.equal(*(clean.column(verdict.difference_sq) for verdict in verdicts))
    assert len({float(verdict.misses.to_torch()[0, 0]) for verdict in verdicts}) == 1


def test_a_pass_hits_only_if_every_live_row_does() -> None:
    """The threshold just above and below the largest error, and below the smallest; what goes on follows."""
    run = Run(CASES["a tree"], torch.float32)
    error_N = relative_error(run.expected.difference_sq_BN, run.expected.norm_sq_BN)[0]
    largest, smallest = float(error_N.max()), float(error_N.min())
    assert smallest < 0.99 * largest
    for threshold, misses in ((1.001 * largest, 0), (0.999 * largest, 1), (0.999 * smallest, run.N), (0.0, run.N)):
        verdict = run.decode.verify(run.exact, run.part, threshold)
        assert float(verdict.misses.to_torch()[0, 0]) == misses
        out = run.decode.empty(*run.q.shape)
        run.decode.choose(run.window.predicted, run.exact.o, verdict, out)
        chosen = run.exact.o if misses else run.window.predicted
        assert torch.equal(run.on_host(out), run.on_host(chosen))
    verdict = run.decode.verify(run.exact, run.part, float("inf"))
    assert float(verdict.misses.to_torch()[0, 0]) == 0, "a static layer takes every prediction"


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_norms_of_projected_attention(dtype: torch.dtype) -> None:
    """For ``attention_verifier.space=residual``: of the difference after a projection."""
    run = Run(CASES["a tree"], dtype)
    operations = SimulatedOperations(dtype)
    weight_XM = (torch.randn(run.q.shape[1], 96) * run.q.shape[1] ** -0.5).to(dtype)
    projected = [operations.linear(x, operations.to_device(weight_XM)) for x in (run.window.predicted, run.exact.o)]
    verdict = run.decode.verify(run.decode.compare(*projected), run.part, 1.0)
    predicted, exact = (
        x[0].flatten(1) @ weight_XM.double() for x in (run.expected.predicted_BNHD, run.expected.exact_BNHD)
    )
    for found, right in ((verdict.difference_sq, predicted - exact), (verdict.norm_sq, exact)):
        assert (run.column(found).sqrt() / right.norm(dim=-1) - 1).abs().max() <= TOLERANCES[dtype][1]


def test_block_floating_point_is_only_counted() -> None:
    """Why BFP8 and BFP4 are not offered: the simulator has no BFP4, and rounds nothing to BFP8."""
    ttnn = load_simulator()
    assert not hasattr(ttnn, "bfloat4_b")
    # 16 numbers that share an exponent: BFP8 has 7 bits for each, so that the small ones would be 0
    x = torch.full((32, 32), 2.0**-9)
    x[:, ::16] = 1.0
    kept = ttnn.from_torch(x, dtype=ttnn.bfloat8_b)
    assert torch.equal(ttnn.to_torch(kept).float(), x)
    assert kept.size_in_bytes(1024) == 1024 + 64
