"""Pipelines as a user gets them, from YAML and overrides, on the real default model."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.config.composing import settings_for
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings

SPEC_BENCH = Path(__file__).parents[3] / "shared" / "data" / "spec_bench.jsonl"


def settings_of(*overrides: str) -> Settings:
    """The settings of a command line's overrides."""
    return settings_for(overrides)


@functools.lru_cache(maxsize=2)
def pipeline_of(*overrides: str) -> Pipeline:
    """The pipeline of a command line's overrides, on all cores; the last two are kept in memory."""
    torch.set_num_threads(os.cpu_count() or 1)
    return build_pipeline(settings_of(*overrides), Registry.discover())


def tokens_of(pipeline: Pipeline, prompt: Sequence[int], max_new_tokens: int, **options: Any) -> list[int]:
    """All new tokens for one prompt."""
    return [t for tokens in pipeline.stream(prompt, max_new_tokens=max_new_tokens, **options) for t in tokens]


def bench_texts(count: int, longest: int = 4000) -> list[str]:
    """``count`` first turns of Spec-Bench, evenly spread over its tasks, of at most ``longest`` characters."""
    if not SPEC_BENCH.is_file():
        pytest.skip(f"{SPEC_BENCH} is not there: the prompts of shared/ are needed")
    lines = [json.loads(line) for line in SPEC_BENCH.read_text().splitlines()]
    texts = [line["turns"][0] for line in lines if len(line["turns"][0]) <= longest]
    return texts[:: max(1, len(texts) // count)][:count]


def bench_prompts(pipeline: Pipeline, count: int, longest: int = 4000) -> list[list[int]]:
    """:func:`bench_texts` as the chat prompts of the pipeline's model."""
    return [pipeline.tokenizer.chat([{"role": "user", "content": text}]) for text in bench_texts(count, longest)]
