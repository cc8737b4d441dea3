"""Prompts sent back before their answers, with log-probabilities: what the LM Evaluation Harness scores texts by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from spec_sdk import Engine
from tests.support.serving import MODEL, Served, post

QUESTION = "Why is the sky blue?"
CONTEXTS = [[40, 51, 300, 62], [7, 77, 177, 277, 377, 477], [91]]
CONTINUATIONS = [[404, 17], [45], [250, 3, 4, 5, 6]]


def scored(token_ids: Sequence[int], checkpoint: Path) -> torch.Tensor:
    """Log-probabilities [P, V] behind each token by transformers, in double precision."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    with torch.no_grad():
        logprob_NV: torch.Tensor = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    return logprob_NV


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_continuations_are_scored_as_by_transformers(max_tokens: int, server: Served, checkpoint: Path) -> None:
    """By the requests of lm_eval's local-completions, and as it reads their replies."""
    prompts = [[*context, *continuation] for context, continuation in zip(CONTEXTS, CONTINUATIONS, strict=True)]
    body = {"model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234}
    status, reply = post(server.port, "/v1/completions", json.dumps({**body, "echo": True}).encode())
    told = json.loads(reply)
    assert status == 200 and [choice["index"] for choice in told["choices"]] == [0, 1, 2]
    assert told["usage"]["completion_tokens"] == 3 * max_tokens
    assert told["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for choice, context, prompt in zip(told["choices"], CONTEXTS, prompts, strict=True):
        logprobs, own_PV = choice["logprobs"], scored(prompt, checkpoint)
        assert {len(column) for column in logprobs.values()} == {len(prompt) + max_tokens}
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        for place in range(len(context), len(prompt)):
            own = float(own_PV[place - 1, prompt[place]])
            best = float(own_PV[place - 1].max())
            assert logprobs["token_logprobs"][place] == pytest.approx(own, abs=1e-4)
            assert max(logprobs["top_logprobs"][place].values()) == pytest.approx(best, abs=1e-4)
        assert choice["finish_reason"] == "length"


def test_the_prompt_stands_before_the_answer(client: openai.OpenAI, engine: Engine) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 6, "n": 2, "temperature": 1.0, "seed": 4}
    tokens = engine.tokenizer.encode(QUESTION)
    for prompt in ([QUESTION, "Hi 😀"], [tokens, engine.tokenizer.encode("Hi 😀")]):
        plain = client.completions.create(**asked, prompt=prompt)
        echoed = client.completions.create(**asked, prompt=prompt, echo=True)
        texts = [
            before + choice.text for before, choice in zip([QUESTION] * 2 + ["Hi 😀"] * 2, plain.choices, strict=True)
        ]
        assert [choice.text for choice in echoed.choices] == texts
        assert all(choice.logprobs is None for choice in echoed.choices) and echoed.usage == plain.usage
    nothing = client.completions.create(model=MODEL, prompt=tokens, echo=True, max_tokens=0, stop="sky").choices[0]
    assert (nothing.text, nothing.finish_reason) == (QUESTION, "length")


def test_scoring_says_nothing_of_drafting(client: openai.OpenAI, server: Served) -> None:
    client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=6)
    names = ("generation_tokens_total", "target_passes_total", "mean_accepted_tokens")
    before = [server.metric(name) for name in names]
    told: Any = client.completions.create(model=MODEL, prompt=QUESTION, echo=True, logprobs=0, max_tokens=0).usage
    assert [server.metric(name) for name in names] == before
    assert told.speculation["mean_accepted_tokens"] is None and told.total_tokens == told.prompt_tokens


@pytest.mark.parametrize("max_tokens", [0, 7])
def test_a_stream_adds_up_to_the_whole(max_tokens: int, client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": [QUESTION, "Hi 😀"], "max_tokens": max_tokens, "echo": True, "logprobs": 2}
    whole = client.completions.create(**asked)
    texts, columns, usage = {0: "", 1: ""}, {0: dict[str, list[Any]](), 1: dict[str, list[Any]]()}, None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            for name, values in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                columns[choice.index].setdefault(name, []).extend(values)
    assert usage == whole.usage
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert texts[choice.index] == choice.text and columns[choice.index] == choice.logprobs.model_dump()


def test_offsets_point_into_prompt_and_answer(client: openai.OpenAI) -> None:
    prompt = "Hi 😀🦄, why?"
    asked: Any = {"extra_body": {"structured_outputs": {"regex": "because 我爱 you"}}, "max_tokens": 40}
    choice = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=0, **asked).choices[0]
    assert choice.text == f"{prompt}because 我爱 you" and choice.logprobs is not None
    assert choice.logprobs.tokens is not None and choice.logprobs.text_offset is not None
    told = list(zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True))
    assert told[0][1] == 0 and len(prompt) in dict(told).values()
    assert sum(token.startswith("bytes:") for token, _ in told) > 2
    for token, offset in told:
        assert choice.text.startswith("" if token.startswith("bytes:") else token.replace("</s>", ""), offset)


def test_an_answer_behind_half_a_character_has_offsets_of_its_own(client: openai.OpenAI, engine: Engine) -> None:
    prompt = engine.tokenizer.encode("Hi 😀")[:-1]
    choice = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=0, max_tokens=4).choices[0]
    before = engine.tokenizer.decode(prompt)
    assert before.endswith("\ufffd") and choice.text.startswith(before)
    assert choice.logprobs is not None and choice.logprobs.text_offset is not None
    assert choice.logprobs.text_offset[len(prompt)] == len(before) > choice.logprobs.text_offset[len(prompt) - 1]


def test_min_tokens_and_what_generation_tasks_send(client: openai.OpenAI, engine: Engine) -> None:
    [whole] = engine.generate(QUESTION, chat=False, max_new_tokens=12)
    asked: Any = {"model": MODEL, "prompt": QUESTION, "max_tokens": 12, "temperature": 0, "seed": 1234}
    assert client.completions.create(**asked, stop=["</s>", "never there"]).choices[0].text == whole.text
    extra: Any = {"stop_token_ids": whole.tokens[:1]}
    assert client.completions.create(**asked, extra_body=extra).choices[0].finish_reason == "stop"
    told = client.completions.create(**asked, extra_body={**extra, "min_tokens": 5})
    [own] = engine.generate(QUESTION, chat=False, max_new_tokens=12, min_tokens=5, stop_token_ids=whole.tokens[:1])
    assert told.usage is not None and told.usage.completion_tokens == len(own.tokens) > 5
    assert told.choices[0].text == own.text
