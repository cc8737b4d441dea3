"""In bfloat16 too, lossless pipelines on native kernels give the tokens of plain decoding, near-ties included."""

from __future__ import annotations

import functools

import pytest

from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk_backends.native.decoder import NativeDecoder
from tests.support.real_pipelines import bench_prompts, pipeline_of, tokens_of

NATIVE = ("backend=cpu", "backend.native=true", "model.dtype=bfloat16")
NEW_TOKENS = 32


@functools.cache
def plain() -> list[list[int]]:
    return answers("vanilla")


def answers(name: str, *overrides: str) -> list[list[int]]:
    pipeline = pipeline_of(f"pipeline={name}", *overrides, *NATIVE)
    executor = pipeline.models.target.executor
    assert isinstance(executor, TorchExecutor) and type(executor.decoder) is NativeDecoder
    return [tokens_of(pipeline, prompt, NEW_TOKENS) for prompt in bench_prompts(pipeline, 3, longest=400)]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("prompt_lookup", ()),
        # guesses and a model's tree; the passes of the others are those of these, of other sizes
        pytest.param("sd_chain", (), marks=pytest.mark.full),
        ("easyspec_paper", ()),
        pytest.param("easyspec_paper", ("drafter.growth=static",), marks=pytest.mark.full),
        pytest.param("specinfer_tree", ("sampling.temperature=0",), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_the_tokens_of_plain_decoding(name: str, overrides: tuple[str, ...]) -> None:
    assert answers(name, *overrides) == plain()
