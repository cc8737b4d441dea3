"""A fixed seed gives the same output, run after run, and another seed another."""

from __future__ import annotations

import pytest

from tests.support.real_pipelines import pipeline_of, tokens_of

PIPELINES = [
    "vanilla",
    "sd_chain",
    "prompt_lookup",
    "specinfer_tree",
    "easyspec_chain",
    "easyspec_paper",
    "alspec",
    "alspec_easyspec_tree",
]
SAMPLING = ("sampling.temperature=0.9", "sampling.top_k=50", "sampling.top_p=0.95")


ALWAYS = {"bfloat16": ("vanilla", "sd_chain", "alspec_easyspec_tree"), "float32": ("easyspec_paper",)}
"""The others are tried on a tiny model there (test_tiny_pipelines.py)."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.full] * (name not in always))
        for dtype, always in ALWAYS.items()
        for name in PIPELINES
    ],
)
def test_same_seed_same_tokens(name: str, dtype: str) -> None:
    pipeline = pipeline_of(f"pipeline={name}", f"model.dtype={dtype}", *SAMPLING)
    prompt = pipeline.tokenizer.chat([{"role": "user", "content": "Name three rivers and three mountains."}])
    first, again = (tokens_of(pipeline, prompt, 10, ignore_eos=True) for _ in range(2))
    other = tokens_of(pipeline, prompt, 10, ignore_eos=True, request_id=1)
    assert first == again
    assert first != other
    assert pipeline.guarantee == ("relaxed" if name.startswith("alspec") else "distribution")
