"""``deterministic=true``: a row of a pass gets the bits that plain decoding gives it, whatever stands beside it."""

from __future__ import annotations

import ctypes
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.executor import Executor
from spec_sdk.model.session import Session
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.testing import check_same_bits
from spec_sdk.testing.same_bits import random_tree, same_bits
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native import crossover, decoder, library, products, prompts_in_parts
from spec_sdk_backends.native.decoder import NativeDecoder
from tests.support.threads import threads
from tests.support.tiny_decoder import ModelTensors

KNOWN = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": 1024,
}
"""Heads of 16, which the kernels take, and whole groups of 32 for weights in few bits."""
FAMILIES = (
    "smollm",
    "biased_llama",
    "qwen3",
    "mistral_sliding",
    "gemma2",
    "granite",
    "qwen2_moe",
    "glm4_moe",
    "deepseek_v3",
    "youtu",
    "sparse_steps",
)
DTYPES = [torch.float32, torch.bfloat16]
WEIGHTS = ["dense", "int8", "int4", "int8, rows in 8 bits"]


class Checkpoint(ModelTensors):
    """With what is asked of a source beside its tensors."""

    name = "tiny"

    def __init__(self, family: str, **differences: int) -> None:
        super().__init__(family, 0, **{**KNOWN, **differences})

    @property
    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def within(self, context: int) -> Checkpoint:
        raise NotImplementedError


def executor_of(family: str, dtype: torch.dtype, weights: str = "dense", deterministic: bool = True) -> Executor:
    bits, _, rows = weights.partition(", ")
    backend = CpuBackend(CpuConfig(native=True, activations="int8" if rows else "exact"))
    if deterministic:
        backend.be_deterministic()
    executor = backend.load(ChosenWeights(Checkpoint(family), bits, lambda bits: True), dtype)
    assert isinstance(executor, TorchExecutor) and isinstance(executor.decoder, NativeDecoder)
    as_fast = not rows and prompts_in_parts.parts_are_as_fast(executor.decoder, executor.ops)
    assert (executor.bits_vary is None) == (deterministic or bool(rows) or as_fast)
    return executor


def torch_is_faster(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    """What is measured on this machine would be this."""
    for module in (decoder, products):
        monkeypatch.setattr(module, "most_rows", lambda *_: 64 if faster else crossover.ANY)
    monkeypatch.setattr(prompts_in_parts, "parts_are_as_fast", lambda *_: not faster)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_trees(
    family: str,
    dtype: torch.dtype,
    weights: str,
    scale: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    """Among others, on prompts that were fed in other chunks, together, or on what was left in a slot."""
    executor = executor_of(family, dtype, weights)
    worlds = scale(1, 40)
    compared = sum(check_same_bits(executor, seed) for seed in range(worlds))
    record_property("trees", compared)
    assert compared >= 4 * worlds


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_trees_wider_than_one_native_call(dtype: torch.dtype, scale: Callable[[int, int], int]) -> None:
    executor = executor_of("qwen3", dtype)
    for seed in range(scale(2, 60)):
        check_same_bits(executor, seed, most_nodes=180, rounds=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_it_bits_depend_on_how_a_prompt_was_fed(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checks above would find."""
    torch_is_faster(monkeypatch, True)
    with pytest.raises(AssertionError, match="are not plain decoding's"):
        check_same_bits(executor_of("smollm", dtype, deterministic=False), 0)


@pytest.mark.parametrize("weights", ["dense", "int8", "int4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nobody_need_ask_for_it_where_parts_are_as_fast(
    dtype: torch.dtype, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_is_faster(monkeypatch, False)
    executor = executor_of("smollm", dtype, weights, deterministic=False)
    check_same_bits(executor, 0)
    check_same_bits(executor, 1, most_nodes=180, rounds=2)


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_in_8_bits_need_not_ask_for_it(dtype: torch.dtype, bits: str) -> None:
    """A last bit that differs tips a row's codes, which moves logits far more than rounding in float32."""
    executor = executor_of("smollm", dtype, f"{bits}, rows in 8 bits", deterministic=False)
    check_same_bits(executor, 0)
    check_same_bits(executor, 1, most_nodes=180, rounds=2)


@pytest.mark.parametrize("weights", ["dense", "int4, rows in 8 bits"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrow_passes_over_a_cache_in_8_bits(dtype: torch.dtype, weights: str) -> None:
    """A last bit that differs would be rounded to another code, and be seen by all tokens that follow."""
    executor = executor_of("qwen3", dtype, weights, deterministic=False)
    assert isinstance(executor, TorchExecutor)
    executor.keep_cache_in("int8")
    for seed in range(4):
        check_same_bits(executor, seed, most_requests=2, most_nodes=30, longest_prompt=30)


def test_some_of_the_blocks() -> None:
    """What a draft model is that is cut out of the target."""
    cut = executor_of("smollm", torch.bfloat16).cut([0, 2])
    assert cut.bits_vary is None
    check_same_bits(cut, 0)


def test_bits_are_told_apart() -> None:
    zero, nan = torch.zeros(2), torch.full((2,), float("nan"))
    assert same_bits(zero, zero.clone()) and same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero) and not same_bits(zero, zero.bfloat16()) and not same_bits(zero, zero[:1])
    assert not same_bits(zero.bfloat16(), torch.tensor([0.0, 1e-30]).bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_logits_of_the_last_rows_of_many_requests(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than one native call takes, each with a row of logits, where torch would multiply them."""
    torch_is_faster(monkeypatch, True)
    executor, slots = executor_of("smollm", dtype), list(range(70))
    session, alone = Session(executor), Session(executor)
    texts = [[3 + slot % 7, 5 + slot, 9] for slot in slots]
    found = [logits.full_KV for logits in session.feed(slots, texts)]
    for slot in (0, 63, 64, 69):
        alone.open(0, [], keep=False)
        (expected,) = alone.feed([0], [texts[slot]])
        assert same_bits(found[slot], expected.full_KV), slot


def test_a_growing_tree_wider_than_one_native_call() -> None:
    """A self-drafting model feeds levels of many nodes; each sees its ancestors, wherever its part begins."""
    executor = executor_of("smollm", torch.bfloat16)
    session, alone = Session(executor), Session(executor)
    for each in (session, alone):
        each.prefill(0, [5, 6, 7, 8])
    tree = TreeBuilder(8)
    level = [tree.add(0, token, "chosen") for token in range(3, 93)]
    session.grow([0], [tree], [len(level)])
    for node in level:
        tree.add(node, 94, "chosen")
    (found,) = session.grow([0], [tree], [len(level)])
    for i in (0, 1, 63, 64, 89):
        alone.truncate(0, 4)
        alone.prefill(0, [3 + i])
        (scores,) = alone.score([0], [TokenTree.root_only(94)])
        assert same_bits(found.full_KV[i], scores.logits_NV[0]), i


@pytest.mark.parametrize("several", [1, 2, 3])
def test_threads_change_no_bit(several: int) -> None:
    executor = executor_of("qwen3", torch.bfloat16)
    tree = random_tree(random.Random(0), 90, 96)
    results = []
    for count in (1, several):
        with threads(count):
            session = Session(executor)
            session.prefill(0, list(range(3, 90)))
            results.append(session.score([0], [tree])[0].logits_NV)
    assert same_bits(*results)


OF_PREFIX = """        add_prefix(piece);
"""
OF_TREE = """        for (int64_t n = 0; n < piece.count; n++) {
            const C* of[SPAN];
            int64_t q = n * group, own = piece.end[n] - piece.common;
            for (int64_t j = 0; j < own; j++) of[j] = piece.values + piece.column(n, piece.common + j) * D;
            LinesAhead none;
            add_products<false>(_score + q * SPAN + piece.common, SPAN, group, own, of, D, _sum + q * D, D, none);
        }
"""
ALL_KEYS = "return add_products<false>(_score, SPAN, queries, piece.common, of, D, _sum, D, keys);"
OF_HALVES = """{
            int64_t half = piece.common / 2;
            add_products<false>(_score + half, SPAN, queries, piece.common - half, of + half, D, _sum, D, keys);
            return add_products<false>(_score, SPAN, queries, half, of, D, _sum, D, keys);
        }
"""
WRONG_KERNELS = {
    "the tree's values are added before the prefix's": (OF_PREFIX + OF_TREE, OF_TREE + OF_PREFIX),
    "the later half of the prefix's values comes first": (ALL_KEYS, OF_HALVES),
}
"""Attention that is right but for the order of its sums."""


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_wrong_kernels_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = WRONG_KERNELS[name]
    shutil.copytree(library.SOURCE, tmp_path / "source")
    attention = tmp_path / "source" / "attention_vectors.h"
    source = attention.read_text()
    assert source.count(old) == 1
    attention.write_text(source.replace(old, new))
    monkeypatch.setattr(library, "SOURCE", tmp_path / "source")
    compiler = next(path for path in library.compilers() if shutil.which(path))
    library._compile(compiler, tmp_path / "wrong.so", library.openmp_runtimes()[0])
    loaded = ctypes.CDLL(str(tmp_path / "wrong.so"))
    library._declare(loaded)
    monkeypatch.setattr(library, "find", lambda: loaded)
    with pytest.raises(AssertionError, match="are not plain decoding's"):
        for seed in range(4):
            check_same_bits(executor_of("smollm", torch.float32), seed)
