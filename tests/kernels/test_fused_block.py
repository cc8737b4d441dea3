"""The small operations of a block in Triton, against float64, and decoders that are made of them.

Legend: B requests, N rows of a request, K rows, M model dim, I MLP dim, H query heads, G KV heads, D head dim, S slots,
C capacity.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from spec_sdk.contracts import BlockRunner, PassInputs, PassPlan
from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.rope import RotaryTable, rotate
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import RequestRows
from spec_sdk.testing import check_executor
from spec_sdk.tree import TreeBuilder
from spec_sdk_backends import fused_decoder, matrix_vector
from spec_sdk_backends.fused_block_kernels import rotate_and_store_kernel
from spec_sdk_backends.fused_decoder import FusedDecoder, add_rms_norm, gated_mlp, unfused_because
from tests.kernels.test_session import together
from tests.support.skips import interpreted
from tests.support.tiny_decoder import tiny_decoder

EPSILON = 1e-5
FAMILIES = [
    "smollm",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("biased_llama", "qwen2", "gemma", "phi4", "granite")),
    "qwen3",
]


def random(*shape: int, seed: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("size", [48, 64, 576])
def test_the_sum_and_its_norm(size: int, device: torch.device) -> None:
    h_BNM, added_BNM = (random(2, 3, size, seed=seed, device=device) for seed in (0, 1))
    h_BNM[0, 0] *= 1e4
    gain_M = random(size, seed=2, device=device)
    for added in (None, added_BNM):
        total, normed = add_rms_norm(h_BNM, added, gain_M, EPSILON)
        x_BNM = h_BNM.double() if added is None else (h_BNM + added).double()
        close(total, x_BNM)
        scale = (x_BNM.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        close(normed, x_BNM * scale * gain_M.double())
    assert add_rms_norm(h_BNM, None, gain_M, EPSILON)[0] is h_BNM


def test_the_norm_is_of_the_sum_as_it_is_stored(device: torch.device) -> None:
    """In bfloat16 the rounded sum goes on as hidden state: its norm must belong to it."""
    h_M = torch.full((1, 1, 16), 256.0, dtype=torch.bfloat16, device=device)
    added_M, gain_M = torch.full_like(h_M, 0.9), torch.ones(16, dtype=torch.bfloat16, device=device)
    total, normed = add_rms_norm(h_M, added_M, gain_M, 256.0**2)
    assert torch.equal(total, h_M)
    close(normed.float(), torch.full_like(h_M, math.sqrt(0.5)).float())


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate(activation: Any, device: torch.device) -> None:
    weight_OI, down_MI = random(2 * 33, 16, seed=0, device=device), torch.eye(33, device=device)
    mlp = GatedMLP(Projection(weight_OI), Projection(down_MI), activation)
    x_BNM = 3 * random(2, 3, 16, seed=1, device=device)
    gate, up = (x_BNM.double() @ weight_OI.double().T).chunk(2, -1)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    torch.testing.assert_close(gated_mlp(mlp, x_BNM).double(), active * up, atol=1e-4, rtol=1e-4)
    # far from 0 neither overflows
    far = GatedMLP(Projection(torch.tensor([[-1e4], [1.0]], device=device)), Projection(torch.eye(1, device=device)))
    assert gated_mlp(far, torch.ones((1, 1, 1), device=device)).item() == 0.0


@pytest.mark.parametrize("tabled", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("head_dim", [16, 24])
def test_rotated_and_stored(head_dim: int, normed: bool, tabled: bool, device: torch.device) -> None:
    """Of three requests of other lengths, in slots out of order; what belongs to others stays as it was."""
    B, N, H, G, D, S, C = 3, 4, 4, 2, head_dim, 5, 12
    requests = [RequestRows.chain(slot, prefix, [1] * rows) for slot, prefix, rows in ((4, 0, 4), (0, 7, 1), (2, 5, 3))]
    inputs = PassInputs.of("chain", requests, device)
    qkv_BNXD = random(B, N, H + 2 * G, D, seed=0, device=device)
    q_gain_D, k_gain_D = (random(D, seed=seed, device=device) for seed in (1, 2))
    angle_CD = random(C, D // 2, seed=3, device=device).repeat(1, 2)
    angle_BN1D = angle_CD[inputs.position_BN][:, :, None]
    cos_BN1D, sin_BN1D = angle_BN1D.cos(), 1.1 * angle_BN1D.sin()
    cos, sin = (angle_CD.cos(), 1.1 * angle_CD.sin()) if tabled else (cos_BN1D, sin_BN1D)
    q_BNHD = torch.empty((B, N, H, D), device=device)
    k_SGCD, v_SGCD = torch.full((2, S, G, C, D), 7.0, device=device).unbind(0)
    expected_k, expected_v = k_SGCD.clone(), v_SGCD.clone()
    rotate_and_store_kernel[(B * N, 2)](
        qkv_BNXD, q_gain_D, k_gain_D, cos, sin, inputs.position_BN, inputs.slot_B, inputs.write_at_B, inputs.live_B,
        q_BNHD, k_SGCD, v_SGCD, *k_SGCD.stride()[:3], *v_SGCD.stride()[:3], N, EPSILON,
        H=H, G=G, D=D, NORMED=normed, CACHED=True, TABLED=tabled, OVERLAPPED=False, BLOCK_X=4, HALF_D=16, num_warps=2,
    )  # fmt: skip
    wide = qkv_BNXD.double()
    q, k, v = wide[:, :, :H], wide[:, :, H : H + G], wide[:, :, H + G :]
    if normed:
        q, k = (
            x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * gain.double()
            for x, gain in ((q, q_gain_D), (k, k_gain_D))
        )
    turned = rotate(torch.cat((q, k), 2), cos_BN1D.double(), sin_BN1D.double())
    close(q_BNHD, turned[:, :, :H])
    for b, request in enumerate(requests):
        for row in range(len(request.token)):
            expected_k[request.slot, :, request.write_at + row] = turned[b, row, H:].float()
            expected_v[request.slot, :, request.write_at + row] = v[b, row].float()
    close(k_SGCD, expected_k)
    assert torch.equal(v_SGCD, expected_v)


@interpreted
def test_rotations_are_there_before_the_tokens_are_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read them while the launch before still runs, so no launch of these blocks may be the next behind it."""
    told: list[str] = []
    reserve, embed = RotaryTable.reserve, Decoder.embed

    def reserving(table: RotaryTable, positions: int) -> int:
        before, there = table._tables, reserve(table, positions)
        if table._tables is not before:
            told.append("made")
        return there

    def embedding(decoder: Decoder, token: torch.Tensor) -> torch.Tensor:
        told.append("embedded")
        return embed(decoder, token)

    monkeypatch.setattr(RotaryTable, "reserve", reserving)
    monkeypatch.setattr(Decoder, "embed", embedding)
    session = Session(TorchExecutor(FusedDecoder(tiny_decoder("smollm")), Ops()))
    for count in (3, 70):
        session.prefill(0, [5] * count)
    assert told == ["made", "embedded", "made", "embedded"]


def fused(source: TensorSource, dtype: torch.dtype) -> TorchExecutor:
    decoder = load_decoder(source, torch.device("cpu"), dtype)
    assert unfused_because(decoder) is None
    return TorchExecutor(FusedDecoder(decoder), Ops())


def check_passes(name: str, make_runner: Callable[[], BlockRunner] = SequentialRunner) -> None:
    """Raise AssertionError unless passes over a prompt, a tree and what follows give the plain decoder's logits."""
    logits = [
        logits_of_passes(Session(TorchExecutor(decoder, Ops()), make_runner()))
        for decoder in (FusedDecoder(tiny_decoder(name)), tiny_decoder(name))
    ]
    for found, expected in zip(*logits, strict=True):
        assert expected.std() > 1e-3
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def logits_of_passes(session: Session) -> list[torch.Tensor]:
    """Of a tree behind a prompt, of two tokens behind it, and of one."""
    session.prefill(0, [5, 6, 7, 8, 9])
    tree = TreeBuilder(10)
    for parent, token in ((0, 11), (0, 12), (1, 13)):
        tree.add(parent, token, "chosen")
    scored = session.score([0], [tree.build().tree])[0].logits_NV
    session.commit([0], [[0, 1]])
    return [scored, *(session.feed([0], [tokens])[0].full_KV for tokens in ([14, 15], [14]))]


@interpreted
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "make_runner",
    [SequentialRunner, functools.partial(LayerParallelRunner.of, [[0], [1, 2, 3], [4]])],
    ids=["all at once", "grouped"],
)
def test_a_decoder_of_them(name: str, make_runner: Callable[[], BlockRunner]) -> None:
    """A prompt, a closed tree and a growing one; with a runner that calls the stages too."""
    check_passes(name, make_runner)


@interpreted
def test_several_requests_at_once() -> None:
    """Padded, in slots out of order, with commits between; growing trees too."""
    logits = [
        together(Ops(), None, decoder) for decoder in (FusedDecoder(tiny_decoder("smollm")), tiny_decoder("smollm"))
    ]
    for found, expected in zip(*logits, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@interpreted
@pytest.mark.full
def test_it_is_a_sound_executor() -> None:
    check_executor(fused, seeds=[0])


@interpreted
def test_hidden_states_and_cuts_are_those_of_the_decoder() -> None:
    plain, made = tiny_decoder("smollm"), FusedDecoder(tiny_decoder("smollm"))
    for layers in (range(5), [0, 3]):
        expected, found = plain.subset(list(layers)), made.subset(list(layers))
        assert isinstance(found, FusedDecoder)
        states = []
        for decoder in (expected, found):
            executor = TorchExecutor(decoder, Ops())
            cache = executor.new_cache()
            cache.reserve(1, 8)
            inputs = PassInputs.of("chain", [RequestRows.chain(0, 0, [5, 6, 7])], torch.device("cpu"))
            plan = PassPlan(SequentialRunner(), taps=tuple(range(len(layers) + 1)))
            states.append(executor.forward(inputs, cache, plan).hidden)
        assert states[0].keys() == states[1].keys()
        for layer, state_BNM in states[0].items():
            torch.testing.assert_close(states[1][layer], state_BNM, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "of_block"),
    [
        (
            [8, 9],
            ["add_rms_norm_kernel", "rotate_and_store_kernel", "add_rms_norm_kernel", "gated_activation_kernel"],
        ),
        ([8], ["matrix_vector_kernel", "rotate_and_store_kernel", *3 * ["matrix_vector_kernel"]]),
    ],
    ids=["beside four products and attention", "of one row, beside attention"],
)
@interpreted
def test_the_launches_of_a_block(tokens: list[int], of_block: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[str] = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *arguments, **named: launches.append(self.name)

    for name in ("add_rms_norm_kernel", "rotate_and_store_kernel", "gated_activation_kernel"):
        monkeypatch.setattr(fused_decoder, name, Counted(name))
    monkeypatch.setattr(matrix_vector, "matrix_vector_kernel", Counted("matrix_vector_kernel"))
    # as where the products are the library's
    monkeypatch.setattr(FusedDecoder, "few_rows", range(0))
    session = Session(TorchExecutor(FusedDecoder(tiny_decoder("smollm")), Ops()))
    session.prefill(0, [5, 6, 7])
    launches.clear()
    session.feed([0], [tokens])
    assert launches == 5 * of_block + ["add_rms_norm_kernel"]


@pytest.mark.parametrize(
    ("name", "why"), [("gemma2", "norms of its outputs"), ("mixtral", "no gated MLP"), ("gemma3", "norms")]
)
def test_other_blocks_are_refused_with_the_reason(name: str, why: str) -> None:
    assert why in str(unfused_because(tiny_decoder(name)))


def test_an_activation_that_has_no_kernel() -> None:
    decoder = tiny_decoder("smollm")
    mlp = decoder.blocks[3].mlp
    assert isinstance(mlp, GatedMLP) and unfused_because(decoder) is None
    clamped = dataclasses.replace(decoder.blocks[3], mlp=dataclasses.replace(mlp, activation="clamped_swiglu"))
    decoder.blocks = (*decoder.blocks[:3], clamped, *decoder.blocks[4:])
    assert unfused_because(decoder) == "layer 3 has a clamped_swiglu"


NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python's mmap does not name everywhere."""


@interpreted
def test_heads_that_lie_far_apart_in_the_cache() -> None:
    """Two heads of a long cache are 2³¹ elements apart: in memory that is reserved, and touched where it is written."""
    H, G, D, stride = 1, 3, 2, 2**30
    held = mmap.mmap(-1, 2**32 + 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    # from the middle on, so that an offset that became negative lies in it too
    memory = torch.frombuffer(held, dtype=torch.int8)[2**31 :]
    k_ptr, v_ptr = memory, memory[4096:]
    qkv_XD = torch.arange(1.0, 1 + (H + 2 * G) * D)
    none, one, zero = torch.empty(0), torch.ones(D), torch.zeros(1, dtype=torch.int32)
    rotate_and_store_kernel[(1, 1)](
        qkv_XD, none, none, one, torch.zeros(D), none, zero, zero, zero + 1, torch.empty(H * D), k_ptr, v_ptr,
        0, stride, D, 0, stride, D, 1, EPSILON,
        H=H, G=G, D=D, NORMED=False, CACHED=True, TABLED=False, OVERLAPPED=False, BLOCK_X=8, HALF_D=1, num_warps=1,
    )  # fmt: skip
    for first, base in ((H, k_ptr), (H + G, v_ptr)):
        for head in range(G):
            expected = qkv_XD[(first + head) * D :][:D].to(torch.int8)
            assert torch.equal(base[head * stride :][:D], expected), head


@interpreted
def test_derivatives_go_through_torch() -> None:
    made = FusedDecoder(tiny_decoder("smollm"))
    h_BNM = torch.randn((1, 2, made.config.hidden_size), requires_grad=True)
    made.post_attention(0, h_BNM, torch.zeros_like(h_BNM)).sum().backward()
    assert h_BNM.grad is not None
