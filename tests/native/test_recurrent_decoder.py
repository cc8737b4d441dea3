"""Decoders with recurrent layers that run natively compute what the reference does, in one call and stage by stage."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from spec_sdk.model.architectures import read_config
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.recurrent.decoder import RecurrentDecoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantizing import quantize
from spec_sdk.testing.executors import check_executor, random_tree
from spec_sdk.testing.random_weights import RandomWeights
from spec_sdk.testing.same_bits import check_same_bits
from spec_sdk.tree import TokenTree
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.native.folding import NativeState
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.recurrent_decoder import NativeRecurrentDecoder, unknown_recurrent
from tests.native.near_reference import CPU, assert_close, native_executor, reference
from tests.support.threads import threads

VOCABULARY = 96
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 24,
    "n_groups": 2,
    "ssm_state_size": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5": DELTA,
    "tiled": {**DELTA, "linear_value_heads_tiled": True, "linear_num_value_heads": 6},
    "odd": {**DELTA, "linear_key_head_dim": 12, "linear_value_head_dim": 9},
    "attention alone": {**DELTA, "layer_types": ["full_attention"] * 5},
    "states alone": {**DELTA, "layer_types": ["linear_attention"] * 5},
    "qwen3_5_moe": {
        **DELTA,
        **EXPERTS,
        "model_type": "qwen3_5_moe_text",
        "shared_expert_intermediate_size": 48,
    },
    "qwen3_next": {**DELTA, **EXPERTS, "model_type": "qwen3_next", "shared_expert_intermediate_size": 48},
    "granite": {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "mamba", "attention", "mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "mamba_n_heads": 4,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
    },
    "falcon_h1": {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 96,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.7],
        "ssm_out_multiplier": 0.25,
        "mlp_multipliers": [0.9, 0.6],
        "attention_out_multiplier": 0.8,
        "key_multiplier": 0.5,
    },
    "normed falcon_h1": {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 96,
        "mamba_n_heads": 6,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
    },
    "nemotron_h": {**NEMOTRON, "hybrid_override_pattern": "M-M*-"},
    "nemotron_h_moe": {
        **NEMOTRON,
        "hybrid_override_pattern": "MEM*E",
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 48,
    },
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {
        **EXPERTS,
        "model_type": "lfm2_moe",
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    },
}
SPACES = ("granite", "falcon_h1", "normed falcon_h1", "nemotron_h")
MIXTURES = ("qwen3_5_moe", "qwen3_next", "lfm2_moe", "nemotron_h_moe")
DTYPES = [torch.float32, torch.bfloat16]
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 0.2}


def config_of(name: str, **values: Any) -> ModelConfig:
    return read_config({**COMMON, **MODELS[name], **values}, "tests")


class LongMemories(RandomWeights):
    """Of which a row hangs on all rows before it."""

    def tensor(self, name: str) -> torch.Tensor:
        stored = super().tensor(name)
        return stored - 7 if name.endswith("A_log") else stored


class InEightBits(LongMemories):
    """Matrices of linear layers in 8 bits."""

    def quantized(self, name: str) -> QuantizedMatrix | None:
        weight = self.tensor(name)
        return quantize(weight, 8) if weight.dim() == 2 and weight.shape[1] % 32 == 0 else None


def natively(source: TensorSource, dtype: torch.dtype, **options: Any) -> TorchExecutor:
    executor = native_executor(NativeRecurrentDecoder, source, dtype, **options)
    assert executor.bits_vary
    return executor


def logits_of(executor: TorchExecutor) -> list[torch.Tensor]:
    """Of a prompt of several chunks, single steps until old rows are folded, trees, and several requests at once."""
    session, rng = Session(executor), random.Random(3)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    session.prefill_together([2, 0], [tokens(90), tokens(20)], [])
    found = [session.feed([0], [[token]])[0].full_KV for token in tokens(40)]
    for _ in range(4):
        trees = [random_tree(rng, size, VOCABULARY) for size in (9, 4)]
        scores = session.score([0, 2], trees, taps=[2, 5])
        found += [one.logits_NV for one in scores]
        session.commit([0, 2], [tree.path_to(tree.size - 1) for tree in trees])
    return [logits.double() for logits in found]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_float64(name: str, dtype: torch.dtype) -> None:
    # an expert more or less in bfloat16 is no rounding error, and random state spaces take these as far
    limit = 0.5 if name in (*MIXTURES, *SPACES) and dtype == torch.bfloat16 else LIMITS[dtype]
    source = RandomWeights(config_of(name), 0, dtype)
    assert_close(logits_of(natively(source, dtype)), logits_of(reference(source)), limit)


@pytest.mark.parametrize("name", ["qwen3_5", "lfm2", "falcon_h1", "nemotron_h"])
def test_weights_in_few_bits(name: str) -> None:
    source = InEightBits(config_of(name), 0)
    assert_close(logits_of(natively(source, torch.float32, activations="exact")), logits_of(reference(source)), 1e-4)
    rounding = natively(source, torch.float32)
    assert rounding.rounds_rows
    # rows and weights in 8 bits
    assert_close(logits_of(rounding), logits_of(reference(source)), 0.2)


@pytest.mark.parametrize("way", ["float32", "bfloat16", "few bits"])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_has_the_same_bits_in_every_pass(name: str, way: str) -> None:
    """However a prompt is fed, in trees of any shape, beside others: what decoding one token a pass gives."""
    kind = InEightBits if way == "few bits" else LongMemories
    backend = CpuBackend(CpuConfig())
    backend.be_deterministic()
    executor = backend.load(kind(config_of(name), 0), torch.bfloat16 if way == "bfloat16" else torch.float32)
    assert executor.bits_vary is None
    for seed in range(3):
        check_same_bits(executor, seed, rounds=14, most_requests=2)


@pytest.mark.parametrize("name", ["tiled", "qwen3_5_moe", "granite", "lfm2", "falcon_h1", "nemotron_h_moe"])
def test_it_is_a_sound_executor(name: str) -> None:
    # states of random weights take rounding errors far
    check_executor(natively, config=config_of(name, max_position_embeddings=256), tolerances={torch.float32: 1e-3})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_threads_change_no_bit(name: str, dtype: torch.dtype) -> None:
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(logits_of(natively(RandomWeights(config_of(name), 0, dtype), dtype)))
    assert all(map(torch.equal, found[0], found[1])) and all(map(torch.equal, found[0], found[2]))


def hidden_states(executor: TorchExecutor) -> Mapping[int, torch.Tensor]:
    session = Session(executor)
    session.prefill(0, list(range(3, 33)))
    (scores,) = session.score([0], [TokenTree.chain(5, [6, 7])], taps=list(range(6)))
    return scores.hidden


@pytest.mark.parametrize("name", MODELS)
def test_stages_and_whole_blocks_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = RandomWeights(config_of(name), 0)
    run, passes = NativeRecurrentDecoder.blocks_at_once, list[bool]()

    def counted(*arguments: Any) -> torch.Tensor | None:
        made = run(*arguments)
        passes.append(made is not None)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(NativeRecurrentDecoder, "blocks_at_once", counted)
        at_once = hidden_states(natively(source, torch.float32))
    assert passes == [True, True]
    with monkeypatch.context() as patch:
        patch.setattr(NativeRecurrentDecoder, "blocks_at_once", lambda *arguments: None)
        by_stages = hidden_states(natively(source, torch.float32))
    assert set(at_once) == set(by_stages) == set(range(6))
    for layer, state in at_once.items():
        torch.testing.assert_close(state, by_stages[layer], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3_5", [1, 3, 4]),
        ("falcon_h1", [1, 3, 4]),
        ("nemotron_h", [1, 3, 4]),
        ("nemotron_h", [0, 2, 3]),
        ("nemotron_h", [1, 4]),
    ],
    ids=str,
)
def test_a_part_of_its_blocks(name: str, layers: list[int]) -> None:
    source = RandomWeights(config_of(name), 0)
    ours, theirs = natively(source, torch.float32).cut(layers), reference(source).cut(layers)
    assert type(ours.decoder) is NativeRecurrentDecoder
    assert_close(logits_of_three(ours), logits_of_three(theirs), 1e-4)


def logits_of_three(executor: TorchExecutor) -> list[torch.Tensor]:
    session = Session(executor)
    session.prefill(0, [3, 4, 5])
    return [session.feed([0], [[6]])[0].full_KV.double()]


def test_what_snapshots_hold_stays_as_it_is() -> None:
    session = Session(natively(RandomWeights(config_of("qwen3_5"), 0), torch.float32))
    text = [3 + i % 50 for i in range(300)]
    session.prefill(0, text)
    for token in text[:70]:
        session.feed([0], [[token]])
    fresh = Session(natively(RandomWeights(config_of("qwen3_5"), 0), torch.float32))
    kept = session.open(0, [*text, 9])
    assert 250 < kept <= 300
    rest = [*text[kept:], 9]
    fresh.prefill(0, text[:kept])
    (found,), (expected,) = session.feed([0], [rest]), fresh.feed([0], [rest])
    torch.testing.assert_close(found.full_KV, expected.full_KV, rtol=1e-3, atol=1e-3)


def test_states_fold_natively() -> None:
    decoder = natively(RandomWeights(config_of("qwen3_5"), 0), torch.float32).decoder
    assert isinstance(decoder, NativeRecurrentDecoder)
    for mixer in decoder.mixers.values():
        assert type(mixer.new_state(CPU, torch.float32)) is NativeState


def test_what_the_kernels_do_not_run() -> None:
    source = RandomWeights(config_of("qwen3_5"), 0)
    plain = load_decoder(source, CPU, torch.float32)
    assert isinstance(plain, RecurrentDecoder) and "GatedDeltaNet" in (unknown_recurrent(plain) or "")
    native = load_decoder(source, CPU, torch.float32, NativeOps(CpuOps()))
    assert isinstance(native, RecurrentDecoder) and unknown_recurrent(native) is None
    assert "NativeRecurrentDecoder" in (unknown_recurrent(NativeRecurrentDecoder(native)) or "")
    odd = load_decoder(RandomWeights(config_of("qwen3_5", head_dim=24), 0), CPU, torch.float32, NativeOps(CpuOps()))
    assert isinstance(odd, RecurrentDecoder) and "heads of 24" in (unknown_recurrent(odd) or "")
    executor = CpuBackend(CpuConfig()).load(source, torch.float64)
    assert isinstance(executor, TorchExecutor) and type(executor.decoder) is RecurrentDecoder
