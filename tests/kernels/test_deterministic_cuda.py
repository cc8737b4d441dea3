"""``deterministic=true`` on the CUDA backend: its code path, without a GPU in Triton's interpreter and in float32.

What the interpreter cannot show is the hardware's part: that a tensor core gives a row of a tile the same bits at any
place and beside any rows. ``test_on_this_gpu`` does, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.executor import Executor
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.testing import check_same_bits, repeated
from spec_sdk.testing.answers_by_bits import serve
from spec_sdk_backends import deterministic_ops
from spec_sdk_backends.aligned_attention import Spans
from spec_sdk_backends.cuda import CudaBackend, CudaConfig
from spec_sdk_backends.deterministic_ops import DeterministicOps, tried
from spec_sdk_backends.fixed_tile_products import FixedTileProjection
from spec_sdk_backends.triton_ops import TritonOps
from tests.native.test_deterministic import Checkpoint
from tests.support.real_pipelines import settings_of
from tests.support.skips import interpreted
from tests.support.text_checkpoints import write_text_checkpoint

SMALL = Spans(block=16, span=32)
"""So that short texts have several."""
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "intermediate_size": 64,
}
"""Interpreting takes a time per program."""


def loaded(
    family: str = "smollm",
    weights: str = "dense",
    ops: Ops | None = None,
    dtype: torch.dtype = torch.float32,
    compile: bool = False,
    **options: Any,
) -> Executor:
    """``compile``: interpreted, a captured pass takes three times as long."""
    backend = CudaBackend(CudaConfig(compile=compile, **options))
    backend.be_deterministic()
    backend._ops = ops or DeterministicOps(SMALL)
    if backend._capture is not None and backend.device.type == "cpu":
        backend._capture = repeated  # type: ignore[assignment]
    return backend.load(ChosenWeights(Checkpoint(family, **SHAPE), weights, lambda bits: True), dtype)


def short_check(executor: Executor, seed: int, rounds: int = 2, longest_prompt: int = 24) -> int:
    return check_same_bits(executor, seed, rounds=rounds, most_requests=2, most_nodes=10, longest_prompt=longest_prompt)


@interpreted
@pytest.mark.parametrize(
    ("family", "weights"),
    [
        ("qwen3", "dense"),
        ("mistral_sliding", "int4"),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ("smollm", "int8"),
                ("biased_llama", "dense"),
                ("smollm", "dense"),
                ("mistral_sliding", "dense"),
            )
        ),
    ],
)
def test_random_trees(family: str, weights: str, interpreted_gpu: None, scale: Callable[[int, int], int]) -> None:
    """Among others, on prompts that were fed in other chunks, together, or on what was left in a slot."""
    executor = loaded(family, weights)
    assert executor.bits_vary is None
    assert sum(short_check(executor, seed) for seed in range(scale(1, 12))) >= scale(1, 12)


@interpreted
def test_captured_passes(interpreted_gpu: None) -> None:
    """Padded to powers of two, repeated on other inputs, and waiting for nothing."""
    executor = loaded(compile=True)
    assert isinstance(executor, GraphExecutor) and executor.bits_vary is None and executor.cut([0]).bits_vary is None
    short_check(executor, 1, rounds=1, longest_prompt=10)
    assert executor.captures > 2


class SharedOutProjection(FixedTileProjection):
    """Is right, and adds up the two halves of a single row's inputs by themselves, so that more programs have work."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > x.shape[-1]:
            return super().__call__(x)
        halves = zip(x.chunk(2, -1), self.weight_OI.chunk(2, -1), strict=True)
        return sum(FixedTileProjection(half_OI.contiguous())(half) for half, half_OI in halves)  # type: ignore[return-value]


class ProductsByRows(DeterministicOps):
    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        return SharedOutProjection(weight_OI, bias_O)


class InTheOrderOfSlots(DeterministicOps):
    cached_attention = TritonOps.cached_attention


@interpreted
@pytest.mark.parametrize("wrong", [ProductsByRows, InTheOrderOfSlots])
def test_sums_that_depend_on_the_pass_are_found(wrong: type[DeterministicOps], interpreted_gpu: None) -> None:
    """By the trial on a GPU, after which the promise is not made."""
    executor = loaded(ops=wrong(SMALL))
    assert isinstance(executor, TorchExecutor)
    said = tried(executor)
    assert said is not None and said.startswith("on this machine they depend on the pass: seed 0, request 0 of ")


@interpreted
def test_a_trial_is_of_the_model_and_of_long_texts(interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long ones on a layer of each kind."""
    checked: list[tuple[int, int]] = []

    def noted(executor: Executor, seed: int, *, longest_prompt: int, **sizes: int) -> int:
        checked.append((executor.layers, longest_prompt))
        return 1

    monkeypatch.setattr("spec_sdk.testing.check_same_bits", noted)
    for family, kinds in (("smollm", 1), ("mistral_sliding", 1)):
        executor = loaded(family)
        assert isinstance(executor, TorchExecutor) and tried(executor) is None
        assert checked[-2] == (executor.layers, 40)
        assert checked[-1][0] == kinds and checked[-1][1] > 2 * Spans.choose(64, torch.bfloat16).span


@interpreted
def test_what_is_not_promised(interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^deterministic: it takes the fused launches; leave out backend.fuse=false$"):
        loaded(fuse=False)
    assert loaded("gemma2").bits_vary == "the fused kernels do not run its blocks: layer 0 has norms of its outputs"
    assert loaded("mixtral").bits_vary == "the fused kernels do not run its blocks: layer 0 has no gated MLP"
    executor = loaded()
    executor.keep_cache_in("int8")
    assert executor.bits_vary == "attention over a cache in int8 is torch's; use model.kv_cache=exact"
    # a GPU tries each model
    monkeypatch.setattr(deterministic_ops, "tried", lambda executor: "of a trial")
    made = SimpleNamespace(device=torch.device("cuda"), decoder=SimpleNamespace(kinds=()))
    assert deterministic_ops.bits_vary_of(made, "") == "of a trial"  # type: ignore[arg-type]


PROMPTS = [[3 + i % 7 for i in range(19)], [5, 6], [3 + i % 7 for i in range(12)]]


def pipeline(checkpoint: Path, name: str, *overrides: str) -> Pipeline:
    shared = (f"model.target={checkpoint}", "backend=cuda", "deterministic=true", "model.dtype=float32")
    return build_pipeline(settings_of(f"pipeline={name}", *shared, EAGER, *overrides), Registry.discover())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_text_checkpoint(directory, **{key: value for key, value in SHAPE.items() if key != "head_dim"})
    return directory


EAGER, CAPTURED = "backend.compile=false", "backend.compile=true"
DRAFTED = ("policy=fixed", "policy.depth=3", "policy.max_nodes=6")


@interpreted
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("prompt_lookup", DRAFTED),
        pytest.param("prompt_lookup", (*DRAFTED, CAPTURED), marks=pytest.mark.full),
        pytest.param("easyspec_paper", ("drafter.width=2", "policy.depth=2"), marks=pytest.mark.full),
        pytest.param("layer_skip_tree", (), marks=pytest.mark.full),
    ],
)
def test_answers_and_their_logits(
    name: str, overrides: tuple[str, ...], checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several at once in slots that are used again, beside plain decoding of each alone."""
    monkeypatch.setattr(Spans, "choose", lambda *of_head: SMALL)
    vanilla = pipeline(checkpoint, "vanilla", CAPTURED if CAPTURED in overrides else EAGER)
    assert vanilla.deterministic
    expected = [serve(vanilla.new_engine(), [prompt], 8)[0] for prompt in PROMPTS]
    assert serve(pipeline(checkpoint, name, *overrides).new_engine(2), PROMPTS, 8) == expected


@interpreted
def test_sampled_answers_of_naive_tree_are_plain_decodings(
    checkpoint: Path, interpreted_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spans, "choose", lambda *of_head: SMALL)
    hot = ("sampling.temperature=1", "sampling.seed=3")

    def sampled(made: Pipeline, together: int) -> dict[int, list[int]]:
        engine, tokens = made.new_engine(together), dict[int, list[int]]()
        for number, prompt in enumerate(PROMPTS[:2]):
            tokens[engine.add(TokenRequest(prompt, request_id=number, max_new_tokens=6, ignore_eos=True))] = []
        while engine.busy:
            for progress in engine.step():
                tokens[progress.request] += progress.tokens
        return tokens

    made = pipeline(checkpoint, "prompt_lookup", *hot, "verifier=naive_tree", *DRAFTED)
    assert sampled(made, 2) == sampled(pipeline(checkpoint, "vanilla", *hot), 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("weights", ["dense", "int4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_this_gpu(dtype: torch.dtype, weights: str, captured: bool) -> None:
    """The kernels as they are compiled here, with spans of their own size: the hardware's part of the promise."""
    for family in ("qwen3", "mistral_sliding"):
        executor = loaded(family, weights, DeterministicOps(), dtype, compile=captured)
        assert executor.bits_vary is None, executor.bits_vary
        for seed in range(3):
            check_same_bits(executor, seed, most_nodes=100, longest_prompt=600)
