"""A token tree that is fed in one native call is that of a pass for each level, to the bit: logits, states, K and V.

Legend: N pairs, M model dim, S model dim of the target.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Cache, DraftLogits, PassInputs, PassOutput, PassPlan, Request
from spec_sdk.model.context_vocabulary import ContextVocabulary, with_lowest_tokens
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import EAGLE_HEADS, load_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.runners.layer_parallel import GroupAttention, LayerParallelRunner, attention_fused
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.grown_paths import GrownPaths, ProbablePaths
from spec_sdk.ops.quantized import BITS
from spec_sdk.ops.quantizing import quantize
from spec_sdk.tree import TokenTree
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.growing import NativePathGrower, native_path_grower
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.whole_pass import NativeWholePass
from spec_sdk_drafters.eagle import EagleDrafter
from spec_sdk_drafters.growing_drafter import GrowingDrafter
from spec_sdk_growth.auto import AutoGrowth
from spec_sdk_growth.beam import BeamGrowth
from spec_sdk_growth.dynamic import DynamicGrowth
from spec_sdk_growth.static import StaticGrowth
from tests.native.test_deterministic import executor_of
from tests.support.grown_trees import Fed, FedLevel, fed_and_grown, fed_to_both, keep_a_path, level_by_level
from tests.support.real_pipelines import bench_prompts, pipeline_of
from tests.support.real_pipelines import tokens_of as tokens_of_pipeline
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_heads import HeadSizes, random_ends, write_eagle1, write_eagle3

CPU = torch.device("cpu")
OPS = NativeOps(CpuOps())
SIZES = HeadSizes(M=64, S=64, head_dim=16)
PATHS = [
    ProbablePaths(1, 4, 4096),
    ProbablePaths(4, 3, 4096),
    ProbablePaths(3, 4, 8),
    ProbablePaths(3, 4, 4096, least_reach=0.12),
    ProbablePaths(2, 1, 4096),
]
ROUNDS = (5, 1, 3)
"""Tokens that are committed in one round after the other."""


def tokens_of(count: int, random: torch.Generator, vocabulary: int = SIZES.V) -> list[int]:
    return [int(token) for token in torch.randint(3, vocabulary, (count,), generator=random)]


def check_the_same(make: Callable[[], Session], fed: Callable[[Session, int], Fed], slot: int = 1) -> None:
    """Rounds of text, with trees of all shapes behind them, in a session and in another of the same model."""
    for paths in PATHS:
        ahead, plain = make(), make()
        for number, count in enumerate(ROUNDS):
            tokens, grown, root = fed_to_both(ahead, plain, slot, fed(plain, count), paths)
            # of equal logits the lowest place comes first, as a request gives it
            levels = level_by_level(plain, root, tokens[-1], slot, paths, OPS)
            assert grown.levels or paths.depth == 1 or paths.least_reach
            compare(grown, root, levels, paths.width)
            cached = plain.length(slot) + sum(len(tokens) for tokens, _, _ in levels)
            if not isinstance(ahead, DraftHeadSession):
                keep_a_path(ahead, plain, slot, tokens[-1], grown)
            for name in KVCache.storages:
                one, other = (getattr(session.cache, name)[:, slot, :, :cached] for session in (ahead, plain))
                assert torch.equal(one, other), (paths, number)
            if isinstance(plain, DraftHeadSession):
                assert grown.state_XM is not None
                of_plain = plain._states_TM[slot]
                assert torch.equal(grown.state_XM[: len(of_plain)], of_plain)


def compare(grown: GrownPaths, root: DraftLogits, levels: Sequence[FedLevel], width: int) -> None:
    assert [(list(own.token_K), list(own.parent_K)) for own in grown.levels] == [level[:2] for level in levels]
    for found, expected in zip(
        [grown.root, *(own.logits for own in grown.levels)], [root, *(level[2] for level in levels)], strict=True
    ):
        assert torch.equal(found.full_KV, expected.full_KV)
        for count in (1, width, width + 2):
            tops = (replace(logits, ops=OPS).top(count) for logits in (found, expected))
            for one, other in zip(*tops, strict=True):
                assert torch.equal(one, other)
        few = SIZES.V - 50
        assert torch.equal(found.within(few).full_KV, expected.within(few).full_KV)
        assert found.within(few).top(1)[1].max() < few


HEADS = ["plain", "normed residual", "normed output", "two KV heads of three", "all tokens"]


def head_session(place: Path, name: str, dtype: torch.dtype, weights: str, few_tokens: int = 0) -> DraftHeadSession:
    sizes = SIZES
    if name == "two KV heads of three":
        sizes = replace(SIZES, heads=6)
    elif name == "all tokens":
        sizes = replace(SIZES, W=SIZES.V)
    if not place.exists():
        options = {"normed residual": {"norm_before_residual": True}, "normed output": {"norm_output": True}}
        write_eagle3(place, sizes, **options.get(name, {}))
    ops, ends = NativeOps(CpuOps(), rounds=weights != "dense"), random_ends(sizes, dtype=dtype)
    executor = load_head(open_draft_head(str(place)), EAGLE_HEADS, ends, HeadChoices(weights=weights), CPU, dtype, ops)
    if not few_tokens:
        return DraftHeadSession(executor)
    reduced = with_lowest_tokens(executor, few_tokens, "tests")
    assert isinstance(reduced, DraftHeadExecutor)
    session = DraftHeadSession(reduced)
    session.context_vocabulary = ContextVocabulary(reduced)
    return session


def pairs(seed: int = 3) -> Callable[[Session, int], Fed]:
    random = torch.Generator().manual_seed(seed)

    def fed(session: Session, count: int) -> Fed:
        assert isinstance(session, DraftHeadSession)
        states = {layer: torch.randn(count, SIZES.S, generator=random) for layer in session.head.taps}
        return tokens_of(count, random), session.head.features(states)

    return fed


@pytest.mark.parametrize("weights", ["dense", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_a_head_grows_what_its_passes_would(name: str, dtype: torch.dtype, weights: str, tmp_path: Path) -> None:
    check_the_same(lambda: head_session(tmp_path / "head", name, dtype, weights), pairs())


@pytest.mark.parametrize("weights", ["dense", "int4"])
@torch.no_grad()
def test_the_tokens_of_a_text_are_drafted_too(weights: str, tmp_path: Path) -> None:
    def make() -> DraftHeadSession:
        return head_session(tmp_path / "head", "all tokens", torch.float32, weights, few_tokens=20)

    check_the_same(make, pairs())
    session = make()
    assert session.context_vocabulary is not None
    session.context_vocabulary.follow(0, range(3, SIZES.V))
    tokens, features_NM = pairs()(session, 2)
    assert features_NM is not None
    grown = fed_and_grown(session, 0, tokens, ProbablePaths(4, 4, 99), features_NM)
    drafted = {token for level in grown.levels for token in level.token_K}
    assert drafted & set(session.context_vocabulary.tokens(0))


def native_executor(family: str, dtype: torch.dtype, weights: str) -> TorchExecutor:
    executor = executor_of(family, dtype, weights, deterministic=False)
    assert isinstance(executor, TorchExecutor)
    return executor


@pytest.mark.parametrize("weights", ["dense", "int8", "int4", "int8, rows in 8 bits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["smollm", "qwen3", "gemma3", "granite", "qwen3_moe"])
@torch.no_grad()
def test_a_draft_model_grows_what_its_passes_would(name: str, dtype: torch.dtype, weights: str) -> None:
    executor = native_executor(name, dtype, weights)
    check_the_same(lambda: Session(executor), chains())


@pytest.mark.parametrize("weights", ["dense", "int4, rows in 8 bits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_layers_that_run_in_parallel(dtype: torch.dtype, weights: str) -> None:
    executor = native_executor("smollm", dtype, weights)
    assert executor.layers == 3
    groups = [[0], [1, 2]]

    def make() -> Session:
        return Session(executor, LayerParallelRunner.of(groups))

    check_the_same(make, chains())
    one, other = make(), Session(executor)
    paths = ProbablePaths(1, 3, 99)
    parallel, plain = (fed_and_grown(session, 0, [5, 6, 7], paths) for session in (one, other))
    assert torch.equal(parallel.root.full_KV, plain.root.full_KV)
    assert not torch.equal(parallel.levels[0].logits.full_KV, plain.levels[0].logits.full_KV)

    class Another(LayerParallelRunner):
        def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
            return super().run(decoder, 2 * h_BNM, work)

    class Fused(LayerParallelRunner):
        def attention_of(self, group: Sequence[int], decoder: Decoder) -> GroupAttention:
            return attention_fused

    assert not fed_and_grown(Session(executor, Fused.of(groups)), 0, [5, 6, 7], paths).levels
    assert not fed_and_grown(Session(executor, Another.of(groups)), 0, [5, 6, 7], paths).levels
    assert not fed_and_grown(Session(executor, SequentialRunner(end=2)), 0, [5, 6, 7], paths).levels
    assert not fed_and_grown(Session(executor, LayerParallelRunner.of([[0], [1]])), 0, [5, 6, 7], paths).levels


@pytest.mark.parametrize("form", ["exact", "bfloat16"])
@torch.no_grad()
def test_few_output_rows_and_either_cache(form: str) -> None:
    executor = native_executor("smollm", torch.float32, "int8, rows in 8 bits")
    executor.keep_cache_in(form)
    check_the_same(lambda: Session(with_lowest_tokens(executor, 30, "tests")), chains())


def chains(seed: int = 5) -> Callable[[Session, int], Fed]:
    random = torch.Generator().manual_seed(seed)
    return lambda session, count: (tokens_of(count, random, VOCABULARY), None)


@torch.no_grad()
def test_an_embedding_is_read_in_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it lies where the output head has weights of its own; beside passes that torch looks tokens up for."""
    monkeypatch.setattr(NativeWholePass, "__call__", lambda self, *arguments: None)
    executor = native_executor("smollm", torch.bfloat16, "dense")
    decoder = executor.decoder
    decoder.embedding = Embedding(decoder.embedding.weight_VM)
    assert isinstance(decoder.embedding.held, torch.Tensor)
    weight_VM = decoder.embedding.held
    check_the_same(lambda: Session(TorchExecutor(decoder, executor.ops)), chains())
    # or in the bits of a file, beside a head in others
    for bits in BITS:
        decoder.embedding = QuantizedEmbedding(quantize(weight_VM.float(), bits), decoder.dtype)
        check_the_same(lambda: Session(TorchExecutor(decoder, executor.ops)), chains())


@torch.no_grad()
def test_an_embedding_that_is_laid_out_anew() -> None:
    """As by a model that borrows it, and ties its output head to it."""
    executor = native_executor("mistral", torch.float32, "dense")

    def roots_and_levels() -> list[torch.Tensor]:
        grown = fed_and_grown(Session(executor), 0, [5, 6, 7], ProbablePaths(2, 3, 99))
        return [grown.root.full_KV, *(level.logits.full_KV for level in grown.levels)]

    before = roots_and_levels()
    assert len(before) == 3
    freed = weakref.ref(executor.decoder.embedding.held)
    executor.decoder.embedding.tied_head(executor.ops)
    for one, other in zip(before, roots_and_levels(), strict=True):
        assert torch.equal(one, other)
    assert freed() is None


@torch.no_grad()
def test_what_it_does_not_take_is_fed_level_by_level(tmp_path: Path) -> None:
    session = head_session(tmp_path / "head", "all tokens", torch.float32, "dense")
    fed = pairs()
    for count, paths in ((200, ProbablePaths(1, 3, 99)), (3, ProbablePaths(70, 3, 4096))):
        tokens, features_NM = fed(session, count)
        assert features_NM is not None
        grown = fed_and_grown(session, 0, tokens, paths, features_NM)
        assert not grown.levels and len(grown.root) == 1
    assert session.length(0) == 203
    model = Session(native_executor("smollm", torch.float32, "dense"))
    assert not fed_and_grown(model, 0, [5] * (model.context - 2), ProbablePaths(1, 4, 99)).levels
    assert not fed_and_grown(model, 0, [5], ProbablePaths(1, 3, 99)).levels


@torch.no_grad()
def test_tokens_that_the_model_lacks_are_named_by_a_pass() -> None:
    session = Session(native_executor("smollm", torch.float32, "dense"))
    for token in (session.vocabulary, -1):
        with pytest.raises(IndexError):
            fed_and_grown(session, 0, [5, token], ProbablePaths(1, 3, 99))


def test_who_computes_otherwise_grows_level_by_level() -> None:
    class Flipped(TorchExecutor):
        def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
            output = super().forward(inputs, cache, plan)
            return replace(output, logits_BNV=-output.logits_BNV)

    plain = native_executor("smollm", torch.float32, "dense")
    flipped = Flipped(plain.decoder, plain.ops)
    assert plain.grows_paths and not flipped.grows_paths
    assert not fed_and_grown(Session(flipped), 0, [5], ProbablePaths(1, 3, 99)).levels

    class AsksElsewhere(EagleDrafter):
        def root_pass(self, requests: Sequence[Request]) -> Callable[[], list[DraftLogits]]:
            return super().root_pass(requests)

    assert AsksElsewhere.grows_paths is GrowingDrafter.grows_paths is not EagleDrafter.grows_paths


def test_parts_that_the_kernels_lack(tmp_path: Path) -> None:
    head = head_session(tmp_path / "eagle3", "plain", torch.float32, "dense").head
    assert native_path_grower(head) is not None

    class Another(Eagle3Head):
        def before_output(self, h: torch.Tensor) -> torch.Tensor:
            return 2 * super().before_output(h)

    head.__class__ = Another
    assert native_path_grower(head) is None

    ends = random_ends(SIZES, dtype=torch.float32)
    eagle1 = open_draft_head(str(write_eagle1(tmp_path / "eagle", SIZES)))
    ops = NativeOps(CpuOps())
    assert native_path_grower(load_head(eagle1, EAGLE_HEADS, ends, HeadChoices(), CPU, torch.float32, ops).head) is None

    decoder = native_executor("smollm", torch.float32, "dense").decoder
    assert native_path_grower(decoder) is not None
    capped = decoder.with_head(decoder.output_head)
    capped.config = replace(decoder.config, logit_softcap=30.0)
    assert native_path_grower(capped) is None


@pytest.mark.parametrize(
    "overrides",
    [
        ("pipeline=eagle_tree", "policy=fixed"),
        ("pipeline=eagle_tree", "policy=fixed", "drafter.growth=beam", "drafter.width=2", "model.weights=auto"),
        ("pipeline=mixed_eagle", "policy=fixed", "policy.depth=3"),
        ("pipeline=sd_chain", "model.dtype=bfloat16"),
        ("pipeline=sd_chain", "drafter.growth=static", "drafter.widths=[2,1,1]"),
        ("pipeline=easyspec_paper", "model.weights=auto"),
    ],
    ids=" ".join,
)
def test_a_pipeline_drafts_the_same_trees(overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no growth said which paths it keeps; and what one that says something wrong asks for is fed anew."""
    calls = levels_fed(monkeypatch)
    pipeline = pipeline_of(*overrides)
    prompts = bench_prompts(pipeline, 1, longest=400)

    def trees() -> list[Any]:
        found: list[Any] = []
        propose = GrowingDrafter.propose

        def noted(self: GrowingDrafter, *arguments: Any) -> list[TokenTree]:
            proposed = propose(self, *arguments)
            found.extend((tree.token_N, tree.parent_N, tree.draws_N) for tree in proposed)
            return proposed

        with monkeypatch.context() as patch:
            patch.setattr(GrowingDrafter, "propose", noted)
            found.append([tokens_of_pipeline(pipeline, prompt, 24) for prompt in prompts])
        return found

    drafted = trees()
    assert "drafter.growth=static" in overrides or sum(calls) > 6
    del calls[:]
    for said in (lambda self, request: None, lambda self, request: 5, lambda self, request: 2):
        for growth in (AutoGrowth, BeamGrowth, DynamicGrowth, StaticGrowth):
            monkeypatch.setattr(growth, "kept_paths", said)
        assert trees() == drafted
    assert sum(calls) > 6


def test_easyspec_drafts_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = levels_fed(monkeypatch)
    pipeline = pipeline_of("pipeline=easyspec_paper", "model.weights=auto")
    (prompt,) = bench_prompts(pipeline, 1, longest=400)
    assert tokens_of_pipeline(pipeline, prompt, 20) == tokens_of_pipeline(pipeline.vanilla(), prompt, 20)
    assert len(calls) > 3 and min(calls[:-1]) > 0


def levels_fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with how many levels each native call feeds from now on."""
    counts: list[int] = []
    call = NativePathGrower.__call__

    def counted(self: NativePathGrower, *arguments: Any) -> GrownPaths | None:
        grown = call(self, *arguments)
        counts.append(0 if grown is None else len(grown.levels))
        return grown

    monkeypatch.setattr(NativePathGrower, "__call__", counted)
    return counts
