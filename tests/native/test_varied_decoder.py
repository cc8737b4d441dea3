"""Gemma 4's blocks that run natively compute what the reference does, narrow, in parts and in torch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from spec_sdk.model.architectures import read_config
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.varied_decoder import VariedDecoder
from spec_sdk.ops import Ops
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantizing import quantize
from spec_sdk.testing.executors import check_executor, random_tree
from spec_sdk.testing.random_weights import RandomWeights
from spec_sdk.testing.same_bits import check_same_bits
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.varied_decoder import NativeVariedDecoder, unknown_varied
from tests.native.near_reference import CPU, assert_close, native_executor, reference
from tests.support.threads import threads

VOCABULARY = 96
SLIDES, WHOLE = "sliding_attention", "full_attention"
COMMON: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": [SLIDES, WHOLE, SLIDES, WHOLE, SLIDES, WHOLE],
    "sliding_window": 24,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 1024,
    "final_logit_softcapping": 5.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DENSE: dict[str, Any] = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
SMALL: dict[str, Any] = {
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCABULARY,
}
MIXED: dict[str, Any] = {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 4,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "small": SMALL,
    "mixture": MIXED,
    # no layer of either kind
    "all global": {**DENSE, "layer_types": [WHOLE] * 6},
    "all windowed": {**SMALL, "layer_types": [SLIDES] * 6},
    # inputs wider than MLPs, and the window beyond the context
    "wide inputs": {**SMALL, "hidden_size_per_layer_input": 256, "sliding_window": 2048, "use_double_wide_mlp": False},
    # experts that need more room than MLPs
    "wide mixture": {**MIXED, "moe_intermediate_size": 128, "intermediate_size": 32},
}
DTYPES = [torch.float32, torch.bfloat16]
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 0.2}


def config_of(name: str, **values: Any) -> ModelConfig:
    return read_config({**COMMON, **MODELS[name], **values}, "tests")


class Evened(RandomWeights):
    """Nothing but the norms of Q scales scores."""

    def tensor(self, name: str) -> torch.Tensor:
        stored = super().tensor(name)
        return stored / 4 if name.endswith("q_norm.weight") else stored


class InEightBits(Evened):
    """Matrices in 8 bits."""

    def quantized(self, name: str) -> QuantizedMatrix | None:
        weight = self.tensor(name)
        return quantize(weight, 8) if weight.dim() == 2 and weight.shape[1] % 32 == 0 else None


def natively(source: TensorSource, dtype: torch.dtype, **options: Any) -> TorchExecutor:
    return native_executor(NativeVariedDecoder, source, dtype, **options)


def logits_of(executor: TorchExecutor) -> list[torch.Tensor]:
    """Of prompts of unequal length fed together, steps, and trees of two requests; and of what two blocks give."""
    session, rng = Session(executor), random.Random(3)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    session.prefill_together([2, 0], [tokens(90), tokens(20)], [])
    found = [session.feed([0], [[token]])[0].full_KV for token in tokens(6)]
    for _ in range(3):
        trees = [random_tree(rng, size, VOCABULARY) for size in (9, 4)]
        for one in session.score([0, 2], trees, taps=[2, 6]):
            found += [one.logits_NV, one.hidden[2], one.hidden[6]]
        session.commit([0, 2], [tree.path_to(tree.size - 1) for tree in trees])
    return [logits.double() for logits in found]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_float64(name: str, dtype: torch.dtype) -> None:
    # an expert more or less in bfloat16 is no rounding error
    limit = 0.5 if "mixture" in name and dtype == torch.bfloat16 else LIMITS[dtype]
    source = Evened(config_of(name), 0, dtype)
    assert_close(logits_of(natively(source, dtype)), logits_of(reference(source)), limit)


@pytest.mark.parametrize("name", ["small", "mixture"])
def test_weights_in_few_bits(name: str) -> None:
    source = InEightBits(config_of(name), 0)
    assert_close(logits_of(natively(source, torch.float32, activations="exact")), logits_of(reference(source)), 1e-4)
    rounding = natively(source, torch.float32)
    assert rounding.rounds_rows
    # rows and weights in 8 bits
    assert_close(logits_of(rounding), logits_of(reference(source)), 0.5 if name == "mixture" else 0.2)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_caches_that_round(form: str) -> None:
    source = Evened(config_of("small"), 0)
    found = []
    for executor in (natively(source, torch.float32), TorchExecutor(load_decoder(source, CPU, torch.float32), Ops())):
        executor.keep_cache_in(form)
        found.append(logits_of(executor))
    # a rounding error may round the other way
    assert_close(found[0], found[1], 0.02)


@pytest.mark.parametrize("way", ["float32", "bfloat16", "few bits"])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_has_the_same_bits_in_every_pass(name: str, way: str) -> None:
    """Prompts, trees and padded requests run in parts: what decoding one token a pass gives."""
    backend = CpuBackend(CpuConfig())
    backend.be_deterministic()
    source = (InEightBits if way == "few bits" else Evened)(config_of(name), 0)
    executor = backend.load(source, torch.bfloat16 if way == "bfloat16" else torch.float32)
    assert isinstance(executor, TorchExecutor) and type(executor.decoder) is NativeVariedDecoder
    assert executor.bits_vary is None
    # of the small ones a prompt is more than one part
    longest = 200 if name == "small" else 60
    check_same_bits(executor, 0, rounds=2, most_requests=3, longest_prompt=longest)


@pytest.mark.parametrize("name", ["small", "mixture"])
def test_it_is_a_sound_executor(name: str) -> None:
    # any layers may be cut out of one in which none attends to another's K and V
    config = config_of(name, num_kv_shared_layers=0, max_position_embeddings=256)
    check_executor(natively, config=config, seeds=[0])


@pytest.mark.parametrize("name", ["dense", "small", "mixture"])
def test_threads_change_no_bit(name: str) -> None:
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(logits_of(natively(Evened(config_of(name), 0), torch.float32)))
    assert all(map(torch.equal, found[0], found[1])) and all(map(torch.equal, found[0], found[2]))


def test_narrow_passes_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    source, run, passes = Evened(config_of("small"), 0), NativeVariedDecoder.blocks_at_once, list[bool]()

    def counted(*arguments: Any) -> torch.Tensor | None:
        made = run(*arguments)
        passes.append(made is not None)
        return made

    monkeypatch.setattr(NativeVariedDecoder, "blocks_at_once", counted)
    executor = natively(source, torch.float32)
    at_once = logits_of(executor)
    # the prompts, which are wide, are blocks in torch
    assert passes == [True, False, *[True] * 12]
    executor.keep_cache_in("int8")
    Session(executor).feed([0], [[3]])
    assert not passes[-1], "kernels read no cache of integers"
    monkeypatch.setattr(NativeVariedDecoder, "blocks_at_once", lambda *arguments: None)
    assert_close(logits_of(natively(source, torch.float32)), at_once, 1e-4)


@pytest.mark.parametrize("layers", [[0, 1, 4, 5], [0, 2, 4], [1, 3]], ids=str)
@pytest.mark.parametrize("name", ["small", "mixture"])
def test_a_part_of_its_blocks(name: str, layers: list[int]) -> None:
    source = Evened(config_of(name), 0)
    found = []
    for executor in (natively(source, torch.float32).cut(layers), reference(source).cut(layers)):
        session = Session(executor)
        session.prefill(0, list(range(3, 43)))
        found.append([session.feed([0], [[6]])[0].full_KV.double()])
    assert_close(found[0], found[1], 1e-4)


def test_what_the_kernels_do_not_run() -> None:
    source = Evened(config_of("mixture"), 0)
    plain = load_decoder(source, CPU, torch.float32)
    assert isinstance(plain, VariedDecoder) and "linear layers of another kind" in (unknown_varied(plain) or "")
    native = load_decoder(source, CPU, torch.float32, NativeOps(CpuOps()))
    assert isinstance(native, VariedDecoder) and unknown_varied(native) is None
    assert "NativeVariedDecoder" in (unknown_varied(NativeVariedDecoder(native)) or "")
    odd = load_decoder(Evened(config_of("dense", global_head_dim=24), 0), CPU, torch.float32, NativeOps(CpuOps()))
    assert isinstance(odd, VariedDecoder) and "heads of 24" in (unknown_varied(odd) or "")
    executor = CpuBackend(CpuConfig()).load(source, torch.float64)
    assert isinstance(executor, TorchExecutor) and type(executor.decoder) is VariedDecoder
