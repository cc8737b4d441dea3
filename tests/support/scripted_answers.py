"""A server of a tiny model that answers what a test says, in the vocabulary of models that think and call tools."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import Tokenizer

from spec_sdk import Engine
from spec_sdk.api.answer import Part
from spec_sdk.model.chat_template import ChatTemplate
from spec_sdk.serve.options import ServeConfig
from spec_sdk.serve.reading.harmony import MARKS
from tests.support.serving import MODEL, PATIENCE_S, Served, post, served
from tests.support.text_checkpoints import write_text_checkpoint

SPECIAL = (*MARKS, "[TOOL_CALLS]", "<|python_tag|>", "[THINK]", "[/THINK]", "<|tool_call|>")
ADDED = ("</think>", "<tool_call>")
END = "</s>"
HELLO: Any = [{"role": "user", "content": "Hi"}]


def scripted_engine(directory: Path) -> Engine:
    """A token in most steps. Some marks are special tokens, some tokens, and ``<think>`` is several."""
    write_text_checkpoint(directory, vocab_size=512)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(ADDED))
    tokenizer.save(str(directory / "tokenizer.json"))
    options = ["forced_tokens=false", "max_new_tokens=400", "policy=fixed"]
    return Engine.from_pipeline("prompt_lookup", target=directory, overrides=options)


@dataclass
class Scripted:
    """``text`` is what the model answers, unless a request constrains it. ``prompts``: what templates wrote."""

    server: Served
    client: openai.OpenAI
    monkeypatch: pytest.MonkeyPatch
    text: str = ""
    prompts: list[str] = field(default_factory=list)

    def begin(self, template: str, text: str) -> Scripted:
        """With this template and this answer from here on."""
        engine, tokenizer = self.server.service.engine, self.server.service.engine.tokenizer
        self.text = text
        self.monkeypatch.setattr(tokenizer, "_template", ChatTemplate(template, {}, "here"))
        encode = type(tokenizer).encode_rendered

        def recorded(rendered: str) -> list[int]:
            self.prompts.append(rendered)
            return encode(tokenizer, rendered)

        async def astream(prompt: Any, **options: Any) -> AsyncGenerator[Part, None]:
            said = tokenizer.encode(self.text, add_special_tokens=False)
            if "constraint" not in options:
                options["constraint"] = {"name": "tokens", "begin": said}
            async with contextlib.aclosing(Engine.astream(engine, prompt, **options)) as parts:
                async for part in parts:
                    yield part

        self.monkeypatch.setattr(tokenizer, "encode_rendered", recorded)
        self.monkeypatch.setattr(engine, "astream", astream)
        return self

    def whole(self, messages: Any = HELLO, **options: Any) -> ChatCompletion:
        reply: ChatCompletion = self.client.chat.completions.create(model=MODEL, messages=messages, **options)
        return reply

    def chunks(self, messages: Any = HELLO, **options: Any) -> list[ChatCompletionChunk]:
        options = {"stream_options": {"include_usage": True}, **options}
        return list(self.client.chat.completions.create(model=MODEL, messages=messages, stream=True, **options))

    def refused(self, messages: Any = HELLO, **options: Any) -> dict[str, Any]:
        """The error of a request with status 400."""
        status, reply = post(
            self.server.port, "/v1/chat/completions", json.dumps({"messages": messages, **options}).encode()
        )
        assert status == 400, reply
        error: dict[str, Any] = json.loads(reply)["error"]
        assert "\n" not in error["message"]
        return error


@contextlib.contextmanager
def scripted_server(engine: Engine, reasoning: str = "auto") -> Iterator[tuple[Served, openai.OpenAI]]:
    config = ServeConfig(port=0, access_log=False, reasoning=reasoning)
    with (
        served(engine, config, length=400) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0) as client,
    ):
        yield running, client


def added_up(chunks: Sequence[ChatCompletionChunk], index: int = 0) -> dict[str, Any]:
    """What the chunks of a stream come to: fields as a message has them, and how it ended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish_reason": None}
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == index):
        delta = choice.delta
        thoughts = (delta.model_extra or {}).get("reasoning_content")
        assert bool(thoughts) + bool(delta.content) + bool(delta.tool_calls) <= 1, "some clients read one field"
        assert message["finish_reason"] is None
        message["content"] += delta.content or ""
        message["reasoning_content"] += thoughts or ""
        for call in delta.tool_calls or []:
            assert call.index == len(message["calls"]) and call.id and call.type == "function"
            assert call.function is not None
            message["calls"].append((call.function.name, call.function.arguments))
        message["finish_reason"] = choice.finish_reason
    return message


def as_added_up(reply: ChatCompletion, index: int = 0) -> dict[str, Any]:
    """The same of a whole answer."""
    choice = reply.choices[index]
    calls: Any = choice.message.tool_calls or []
    assert (choice.message.content is None) == (bool(calls) and not choice.message.content)
    return {
        "content": choice.message.content or "",
        "reasoning_content": (choice.message.model_extra or {}).get("reasoning_content", ""),
        "calls": [(call.function.name, call.function.arguments) for call in calls],
        "finish_reason": choice.finish_reason,
    }
