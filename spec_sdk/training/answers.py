"""The data of a training: answers of the target, until there are enough."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from spec_sdk.contracts import Backend
from spec_sdk.duration import duration
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.training.answering import AnswerWriter
from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.sample_plan import SamplePlan
from spec_sdk.training.sample_shards import SampleShards
from spec_sdk.training.samples import Sample
from spec_sdk.training.training_loop import TELL_EVERY_S


def write_answers(
    config: TrainDraftConfig,
    app: Settings,
    plan: SamplePlan,
    backend: Backend,
    shards: SampleShards,
    tell: Callable[[str], None],
) -> None:
    """Have the target answer until there are ``config.tokens``, going on after what is there.

    ``tell`` gets lines of progress. Raises UserError, and OSError where nothing can be written.
    """
    there = list(shards.read())
    done, tokens = {sample.number for sample in there}, sum(len(sample.answer) for sample in there)
    if there:
        tell(f"data: {tokens} of {config.tokens} tokens are there, of {len(there)} answers")
    if tokens >= config.tokens:
        return
    pipeline = build_pipeline(app, Registry.discover(), backend)
    writer = AnswerWriter(
        pipeline,
        plan,
        config.batch,
        config.labels,
        config.prompt_tokens,
        config.prompt_temperature,
        config.answer_tokens,
        min(config.width, pipeline.context),
        app.chat,
    )
    began = told = time.perf_counter()
    first, counted = tokens, list(there)
    # written before the first shard, so that a killed run finds whose they are
    shards.write_manifest(sample_counts(counted, config.seed))
    samples = writer.samples(done)
    try:
        for sample in samples:
            shards.add(sample, config.shard_tokens)
            counted.append(sample)
            tokens += len(sample.answer)
            now = time.perf_counter()
            if now - told > TELL_EVERY_S:
                told, rate = now, (tokens - first) / (now - began)
                left = duration(max(0, config.tokens - tokens) / rate)
                tell(f"data: {tokens} of {config.tokens} tokens, {rate:.0f} a second, {left} left")
            if tokens >= config.tokens:
                break
    finally:
        samples.close()  # type: ignore[attr-defined]
        shards.flush()
        shards.write_manifest(sample_counts(counted, config.seed))
    if writer.left_out:
        tell(f"data: {writer.left_out} prompts left out, too long for task.width={config.width} or empty")
    if tokens < config.tokens:
        tell(f"data: there are no more prompts: {tokens} tokens instead of {config.tokens}")


def sample_counts(samples: Sequence[Sample], seed: int) -> dict[str, Any]:
    """What a manifest and a model card say of samples. ``seed``: that they follow from."""
    return {
        "samples": len(samples),
        "held_out": sum(sample.held_out for sample in samples),
        "answer_tokens": sum(len(sample.answer) for sample in samples),
        "seed": seed,
        "kinds": dict(Counter(sample.kind for sample in samples)),
    }
