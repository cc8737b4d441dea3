"""The harness's own model of a server, ``local-completions``, asks ours."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from spec_sdk import Engine
from tests.evaluation.conftest import QUESTIONS
from tests.evaluation.test_scoring import by_transformers
from tests.support.serving import MODEL, Served, served

Model = tuple[Path, PreTrainedModel]


@pytest.fixture
def server(harness: None, model: Model) -> Iterator[Served]:
    """Of a pipeline whose drafter guesses; a step of an answer gives several tokens."""
    with served(Engine.from_pipeline("easyspec_paper", target=model[0]), length=64) as running:
        yield running


@pytest.mark.parametrize(("batch", "at_once"), [(1, 1), (4, 3)])
def test_scores_and_answers(
    batch: int, at_once: int, server: Served, model: Model, benchmarks: Path, own_answers: list[str]
) -> None:
    harness, tasks = (importlib.import_module(name) for name in ("lm_eval", "lm_eval.tasks"))
    asked = {"model": MODEL, "base_url": f"{server.url}/v1/completions", "tokenizer": str(model[0])}
    found: Any = harness.simple_evaluate(
        model="local-completions",
        model_args={**asked, "tokenized_requests": True, "num_concurrent": at_once},
        batch_size=batch,
        tasks=["tiny_choose", "tiny_generate", "tiny_read"],
        task_manager=tasks.TaskManager(include_path=str(benchmarks), include_defaults=False),
        bootstrap_iters=0,
    )
    answers = {sample["doc_id"]: sample["resps"][0][0] for sample in found["samples"]["tiny_generate"]}
    assert [answers[number] for number in range(len(QUESTIONS))] == own_answers
    encode = server.service.engine.tokenizer.encode
    for sample in found["samples"]["tiny_choose"]:
        for (context, continuation), [(logprob, greedy)] in zip(sample["arguments"], sample["resps"], strict=True):
            before = encode(context)
            own, likeliest = by_transformers(model[1], before, encode(context + continuation)[len(before) :])
            assert float(logprob) == pytest.approx(own, abs=1e-3) and bool(greedy) == likeliest
    for sample in found["samples"]["tiny_read"]:
        [(text,)], [[logprob]] = sample["arguments"], sample["resps"]
        ends = server.service.engine.tokenizer.vocabulary["</s>"]
        assert float(logprob) == pytest.approx(by_transformers(model[1], [ends], encode(text))[0], abs=1e-2)
