"""Pipelines as a user gets them, from YAML and overrides, on the real default model."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

import spec_sdk.pipeline
from spec_sdk.config.composing import settings_for
from spec_sdk.model.models import Models
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.prompts import read_prompt_texts
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings


@functools.lru_cache(maxsize=64)
def settings_of(*overrides: str) -> Settings:
    """The settings of a command line's overrides; composing the same ones again would take a tenth of a second."""
    return settings_for(overrides)


@functools.lru_cache(maxsize=2)
def pipeline_of(*overrides: str) -> Pipeline:
    """The pipeline of a command line's overrides, on dense weights unless they say otherwise; two are kept in memory.

    On the cores that fall to this process. What was loaded is shared with other pipelines of the same model and type.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))))
    with mock.patch.object(spec_sdk.pipeline, "Models", shared_models):
        return build_pipeline(settings_of("model.weights=dense", *overrides), Registry.discover())


def shared_models(target: str, draft: str, draft_layers: Any, **options: Any) -> Models:
    """In the place of :class:`Models`: the last two of them are kept, as a pipeline and its baseline share one."""
    backend = options["load"].__self__
    made = (type(backend), str(backend.config), backend.deterministic, backend.ops.rounds_rows)
    forms = (options[name] for name in ("device", "dtype", "weights", "kv_cache", "draft_weights", "draft_ranks"))
    key = (target, draft, str(draft_layers), *made, *forms)
    if key not in _loaded:
        while len(_loaded) > 1:
            del _loaded[next(iter(_loaded))]
        _loaded[key] = Models(target, draft, draft_layers, **options)
    return _loaded[key]


_loaded: dict[tuple[Any, ...], Models] = {}


def tokens_of(pipeline: Pipeline, prompt: Sequence[int], max_new_tokens: int, **options: Any) -> list[int]:
    """All new tokens for one prompt."""
    return [t for tokens in pipeline.stream(prompt, max_new_tokens=max_new_tokens, **options) for t in tokens]


def bench_texts(count: int, longest: int = 4000) -> list[str]:
    """``count`` prompts of Spec-Bench, evenly spread over its tasks, of at most ``longest`` characters."""
    texts = [text for text in read_prompt_texts("spec_bench_sample") if len(text) <= longest]
    return texts[:: max(1, len(texts) // count)][:count]


def bench_prompts(pipeline: Pipeline, count: int, longest: int = 4000) -> list[list[int]]:
    """:func:`bench_texts` as the chat prompts of the pipeline's model."""
    return [pipeline.tokenizer.chat([{"role": "user", "content": text}]) for text in bench_texts(count, longest)]
