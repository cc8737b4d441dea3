"""A pass in one native call is that of its stages, to the bit: logits, tapped states, K and V."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.model.context_vocabulary import with_lowest_tokens
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_backends.native.products import NativeProjection
from spec_sdk_backends.native.side_by_side import SideBySide
from spec_sdk_backends.native.whole_pass import NativeWholePass, Passed, native_whole_pass
from tests.native.test_growing import native_executor
from tests.native.test_products import BY_LEVELS, quantized
from tests.support.real_pipelines import bench_prompts, pipeline_of
from tests.support.real_pipelines import tokens_of as tokens_of_pipeline
from tests.support.tiny_checkpoints import VOCABULARY

WEIGHTS = ["dense", "int8", "int4, rows in 8 bits"]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each pass that was offered to the one call whether it made it. Loading may time passes that are too wide."""
    made: list[bool] = []
    call = NativeWholePass.__call__

    def counted(self: NativeWholePass, *arguments: Any) -> Passed | None:
        found = call(self, *arguments)
        made.append(found is not None)
        return found

    monkeypatch.setattr(NativeWholePass, "__call__", counted)
    return made


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def tree_of(seed: int) -> TokenTree:
    builder, random = TreeBuilder(tokens(1, seed)[0]), tokens(9, seed + 1)
    for node, token in enumerate(random):
        builder.add(node // 2, token, "chosen")
    return builder.build().tree


def results(executor: TorchExecutor) -> list[torch.Tensor]:
    """Of a few passes of all kinds: chains, trees and growing trees, of one request and of several that are padded."""
    session, taps = Session(executor), (1, executor.layers - 1, executor.layers)
    found = [state for _, state in sorted(session.prefill(0, tokens(12, 1), taps).items())]
    session.prefill(1, tokens(7, 2))
    found += [logits.full_KV for logits in session.feed([0, 1], [tokens(3, 3), tokens(4, 4)])]
    for slots in ([0], [1, 0]):
        scores = session.score(slots, [tree_of(5 + slot) for slot in slots], taps)
        for score in scores:
            found += [score.logits_NV, *(state for _, state in sorted(score.hidden.items()))]
        session.commit(slots, [[0, 1, 3]] * len(slots))
    session.feed([0], [[9]])
    tree = TreeBuilder(9)
    for token in tokens(3, 8):
        tree.add(0, token, "chosen")
    found.append(session.grow([0], [tree], [3])[0].full_KV)
    return [*found, *(getattr(session.cache, name)[:, :2, :, :20] for name in KVCache.storages)]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "family",
    ["smollm", "biased_llama", "qwen3", "mistral", "mistral_sliding", "smollm3", "granite", "gemma2", "gemma3", "glm4"],
)
@torch.no_grad()
def test_the_bits_of_the_stages(
    family: str, dtype: torch.dtype, weights: str, passes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = native_executor(family, dtype, weights)
    del passes[:]
    whole = results(executor)
    assert passes and all(passes)
    monkeypatch.setattr(NativeWholePass, "__call__", lambda self, *arguments: None)
    staged = results(executor)
    assert len(whole) == len(staged) > 12
    for one, other in zip(whole, staged, strict=True):
        assert one.shape == other.shape and torch.equal(one, other)


@pytest.mark.parametrize("form", ["exact", "bfloat16"])
@torch.no_grad()
def test_few_output_rows_and_either_cache(form: str, passes: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    executor = native_executor("smollm", torch.float32, "int8, rows in 8 bits")
    executor.keep_cache_in(form)
    del passes[:]
    reduced = with_lowest_tokens(executor, 30, "tests")
    whole = results(reduced)
    assert passes and all(passes)
    monkeypatch.setattr(NativeWholePass, "__call__", lambda self, *arguments: None)
    assert all(torch.equal(one, other) for one, other in zip(whole, results(reduced), strict=True))


@pytest.mark.parametrize("laid_out", [False, True])
@torch.no_grad()
def test_an_embedding_by_levels(laid_out: bool, passes: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GGUF file's in IQ4_NL, with or without an output head of the same weights."""
    executor = native_executor("qwen3", torch.float32, "dense")
    matrix = quantized(VOCABULARY, executor.decoder.embedding.width, BY_LEVELS)
    executor.decoder.embedding = QuantizedEmbedding(SideBySide.of(matrix) if laid_out else matrix, torch.float32)
    token_1N = torch.tensor([tokens(20, 1)])
    looked_up = executor.decoder.embedding(token_1N)
    assert torch.equal(looked_up[0], matrix.dequantized(torch.float32)[token_1N[0]])
    del passes[:]
    whole = results(executor)
    assert passes and all(passes)
    monkeypatch.setattr(NativeWholePass, "__call__", lambda self, *arguments: None)
    assert all(torch.equal(one, other) for one, other in zip(whole, results(executor), strict=True))


def of(run: Callable[[Session], object], runner: Any = None) -> Session:
    session = Session(native_executor("smollm", torch.float32, "dense"), runner)
    with torch.no_grad():
        run(session)
    return session


def test_passes_that_it_leaves_to_the_stages(passes: list[bool]) -> None:
    native_executor("smollm", torch.float32, "dense")
    del passes[:]
    of(lambda session: session.prefill(0, tokens(200, 1)))
    of(lambda session: session.prefill(0, tokens(5, 1), taps=(0, 2)))
    assert passes and not any(passes)
    del passes[:]
    groups = ([[0], [1, 2]], [[0], [2], [1]], [[0, 1, 2], [], []])
    for runner in (*map(LayerParallelRunner.of, groups), SequentialRunner(end=2)):
        of(lambda session: session.score([0], [TokenTree.root_only(5)]), runner)
    assert not passes

    class Own(SequentialRunner):
        def run(self, decoder: Any, h_BNM: torch.Tensor, work: Any) -> torch.Tensor:
            return super().run(decoder, h_BNM, work)

    of(lambda session: session.score([0], [TokenTree.root_only(5)]), Own())
    assert not passes
    executor = native_executor("smollm", torch.float32, "dense")
    executor.keep_cache_in("int8")
    with torch.no_grad():
        Session(executor).prefill(0, tokens(5, 1))
    assert passes == [False]


def test_a_token_that_there_is_not_is_left_to_the_stages(passes: list[bool]) -> None:
    native_executor("smollm", torch.float32, "dense")
    del passes[:]
    for token in (VOCABULARY, VOCABULARY + 5000, -1):
        with pytest.raises(IndexError):
            of(lambda session, token=token: session.prefill(0, [5, token]))  # type: ignore[misc]
    assert passes == [False] * 3


def test_states_that_no_block_leaves(passes: list[bool]) -> None:
    native_executor("smollm", torch.float32, "dense")
    del passes[:]
    for layer in (-1, 4):
        with pytest.raises(KeyError):
            of(lambda session, layer=layer: session.prefill(0, tokens(5, 1), taps=(layer,)))  # type: ignore[misc]
    assert passes == [False] * 2


@torch.no_grad()
def test_a_request_without_rows_is_left_to_the_stages(passes: list[bool]) -> None:
    executor = native_executor("smollm", torch.float32, "dense")
    cache = executor.new_cache()
    cache.reserve(2, 32)
    chains = [RequestRows.chain(0, 0, [5, 6]), RequestRows.chain(1, 0, [])]
    inputs = PassInputs.of("chain", chains, executor.device)
    del passes[:]
    with pytest.raises(RuntimeError):
        executor.forward(inputs, cache, PassPlan(SequentialRunner(), (), "last"))
    assert passes == [False]


@pytest.mark.parametrize("weights", ["dense", "int8"])
@torch.no_grad()
def test_weights_that_lie_elsewhere_since_the_pass_before(weights: str) -> None:
    """A draft model that borrows an embedding may tie its head to it, which lays the matrix out anew."""
    executor = native_executor("mistral", torch.float32, weights)
    decoder, taken = executor.decoder, tokens(9, 3)
    assert type(decoder.embedding.held) is not type(decoder.output_head)

    def logits() -> torch.Tensor:
        session = Session(executor)
        session.prefill(0, taken[:-1])
        return session.feed([0], [taken[-1:]])[0].full_KV

    before = logits()
    freed = weakref.ref(decoder.embedding.held)
    tied = decoder.embedding.tied_head(executor.ops)
    assert torch.equal(logits(), before)
    assert freed() is None
    decoder.output_head = tied
    of_tied = logits()
    assert not torch.equal(of_tied, before)
    executor = executor.of_decoder(decoder)
    assert torch.equal(logits(), of_tied)
    decoder.final_norm_M = 2 * decoder.final_norm_M
    assert torch.equal(logits(), 2 * of_tied)


def test_decoders_that_the_kernels_do_not_run_whole() -> None:
    decoder = native_executor("smollm", torch.float32, "dense").decoder
    assert native_whole_pass(decoder) is not None

    class Halved(NativeProjection):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) / 2

    class Shifted(Embedding):
        def __call__(self, token_BN: torch.Tensor) -> torch.Tensor:
            return super().__call__(token_BN) + 1

    weight_VM = torch.randn(VOCABULARY, decoder.config.hidden_size)
    assert native_whole_pass(decoder.with_head(Halved(weight_VM))) is None
    shifted = decoder.with_head(decoder.output_head)
    shifted.embedding = Shifted(weight_VM)
    assert native_whole_pass(shifted) is None
    wide = decoder.with_head(decoder.output_head)
    wide.final_norm_M = decoder.final_norm_M.double()
    assert native_whole_pass(wide) is None


@pytest.mark.parametrize("pipeline", ["vanilla", "suffix", "eagle_tree policy=fixed"])
def test_a_pipeline_runs_so(pipeline: str, passes: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    made = pipeline_of(*f"pipeline={pipeline}".split(), "model.weights=auto")
    (prompt,) = bench_prompts(made, 1, longest=400)
    found = tokens_of_pipeline(made, prompt, 16)
    assert sum(passes) >= 4
    monkeypatch.setattr(NativeWholePass, "__call__", lambda self, *arguments: None)
    assert tokens_of_pipeline(made, prompt, 16) == found
