"""What OpenAI's own client gets is what the engine answers."""

from __future__ import annotations

import http.client
import json
from typing import Any

import openai
import pytest

from spec_sdk import Engine
from spec_sdk.model.chat_template import ChatTemplate
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.serve.replies import LEAST
from tests.support.serving import MODEL, PATIENCE_S, Served, get, post

QUESTIONS = ("Why is the sky blue?", "Name three colours.", "What is the capital of France?")
CHAT: Any = [{"role": "system", "content": "Answer."}, {"role": "user", "content": QUESTIONS[0]}]


def test_a_completion_is_the_engines_answer(client: openai.OpenAI, engine: Engine) -> None:
    reply = client.completions.create(model=MODEL, prompt=QUESTIONS[0], max_tokens=9)
    [answer] = engine.generate(QUESTIONS[0], chat=False, max_new_tokens=9)
    assert reply.choices[0].text == answer.text and reply.choices[0].finish_reason == "length"
    assert reply.usage is not None and reply.usage.completion_tokens == 9
    assert reply.usage.prompt_tokens == len(engine.tokenizer.encode(QUESTIONS[0]))
    told: Any = reply.usage.model_extra
    assert told["speculation"]["mean_accepted_tokens"] == answer.metrics["mean_accepted_tokens"]
    assert told["speculation"]["acceptance_rate"] == answer.metrics["acceptance_rate"]
    assert told["speculation"]["guarantee"] == "exact"


def test_a_chat_is_the_engines_answer(client: openai.OpenAI, engine: Engine) -> None:
    parts: Any = [{"role": "developer", "content": "Answer."}]
    parts += [{"role": "user", "content": [{"type": "text", "text": half} for half in ("Why is ", "the sky blue?")]}]
    [answer] = engine.generate([CHAT], max_new_tokens=12)
    for messages in (CHAT, parts):
        reply = client.chat.completions.create(model=MODEL, messages=messages)
        assert reply.choices[0].message.content == answer.text
        assert reply.choices[0].message.role == "assistant"


def test_prompts_of_a_list_and_several_answers_of_each(client: openai.OpenAI, engine: Engine) -> None:
    prompts = [engine.tokenizer.encode(question) for question in QUESTIONS[:2]]
    reply = client.completions.create(model=MODEL, prompt=prompts, n=2, temperature=0.9, seed=5, max_tokens=6)
    expected = [a.text for p in prompts for a in engine.generate([p], n=2, temperature=0.9, seed=5, max_new_tokens=6)]
    assert [choice.text for choice in sorted(reply.choices, key=lambda choice: choice.index)] == expected
    assert len(set(expected)) > 1
    assert reply.usage is not None and reply.usage.completion_tokens == 24


def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI, server: Served) -> None:
    asked: Any = {"model": MODEL, "prompt": list(QUESTIONS), "max_tokens": 10, "logprobs": 1}
    whole = client.completions.create(**asked)
    texts: dict[int, str] = {}
    tokens: dict[int, list[str]] = {}
    reasons: dict[int, str | None] = {}
    usage = None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            tokens[choice.index] = tokens.get(choice.index, []) + (choice.logprobs.tokens or [])
            reasons[choice.index] = choice.finish_reason
    assert [texts[i] for i in range(3)] == [choice.text for choice in whole.choices]
    assert [tokens[i] for i in range(3)] == [choice.logprobs and choice.logprobs.tokens for choice in whole.choices]
    assert set(reasons.values()) == {"length"}
    assert usage is not None and usage == whole.usage
    body = json.dumps({"prompt": "Hi", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}})
    sent = post(server.port, "/v1/completions", body.encode())[1].decode()
    frames = [json.loads(line[6:]) for line in sent.split("\n\n") if line.startswith("data: {")]
    assert [frame["usage"] is None for frame in frames] == [True] * (len(frames) - 1) + [False]


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT)
    chunks = list(client.chat.completions.create(model=MODEL, messages=CHAT, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert not any(chunk.usage for chunk in chunks)


def test_a_stop_string_ends_an_answer(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=QUESTIONS[1]).choices[0].text
    stop = whole[len(whole) // 2 :][:2]
    cut = client.completions.create(model=MODEL, prompt=QUESTIONS[1], stop=["never there", stop]).choices[0]
    assert cut.text == whole[: whole.find(stop)] and cut.finish_reason == "stop"


def test_sampled_and_greedy_requests_in_one_batch(client: openai.OpenAI, engine: Engine) -> None:
    """Each of several at once is what it is alone: its parameters are its own."""
    from concurrent.futures import ThreadPoolExecutor

    options: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "seed": 3, "top_p": 0.8, "presence_penalty": 1.5},
        {"logit_bias": {"40": 100.0}},
        {"frequency_penalty": 2.0, "temperature": 1.2, "seed": 9},
    ]

    def ask(given: dict[str, Any]) -> str:
        return client.completions.create(model=MODEL, prompt=QUESTIONS[2], max_tokens=20, **given).choices[0].text

    with ThreadPoolExecutor(len(options)) as together:
        texts = list(together.map(ask, options))
    for given, text in zip(options, texts, strict=True):
        own: Any = {**given, "logit_bias": {40: 100.0}} if "logit_bias" in given else given
        [alone] = engine.generate(QUESTIONS[2], chat=False, max_new_tokens=20, **own)
        assert text == alone.text, given
    assert texts[3] == engine.tokenizer.decode([40] * 20)
    assert len(set(texts)) == len(texts)


def test_logprobs_of_a_chat(client: openai.OpenAI, engine: Engine) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=CHAT, logprobs=True, top_logprobs=3)
    [answer] = engine.generate([CHAT], logprobs=3)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [one.logprob for one in logprobs.content] == [one.logprob for one in answer.logprobs]
    for one, own in zip(logprobs.content, answer.logprobs, strict=True):
        assert one.token == engine.tokenizer.piece(own.token)
        assert bytes(one.bytes or ()).decode(errors="replace") == one.token
        others = [other.logprob for other in one.top_logprobs]
        assert others == sorted(others, reverse=True)
        assert len(one.top_logprobs) == 3 and one.top_logprobs[0].logprob >= one.logprob > LEAST


def test_models_health_and_metrics(client: openai.OpenAI, server: Served) -> None:
    [model] = client.models.list().data
    assert model.id == MODEL == client.models.retrieve(MODEL).id
    assert get(server.port, "/health") == (200, b'{"status":"ok"}')
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.request("HEAD", "/health")
    assert (answer := connection.getresponse()).status == 200 and not answer.read()
    connection.close()
    before = server.metric("generation_tokens_total")
    client.completions.create(model=MODEL, prompt="Hello", max_tokens=7)
    server.wait_for("generation_tokens_total", before + 7)
    text = get(server.port, "/metrics")[1].decode()
    for name in (
        "requests_total",
        "requests_waiting",
        "requests_running",
        "time_to_first_token_seconds_bucket",
        "tokens_per_second_count",
        "acceptance_rate",
        "mean_accepted_tokens",
        "attention_hit_rate",
    ):
        assert f"\nspec_sdk_{name}" in text
    server.wait_for("requests_running", 0)
    sums = (server.metric(f"{name}_tokens_total") for name in ("accepted", "drafted"))
    accepted, drafted = sums
    assert server.metric("acceptance_rate") == accepted / drafted


def test_an_answer_that_comes_all_at_once_has_no_speed(client: openai.OpenAI, server: Served) -> None:
    def speeds(**options: Any) -> float:
        server.wait_for("requests_running", 0)
        before = server.metric("tokens_per_second_count")
        answer = client.completions.create(model=MODEL, prompt="Hello", **options)
        assert answer.usage is not None and answer.usage.completion_tokens > 1
        server.wait_for("requests_running", 0)
        return server.metric("tokens_per_second_count") - before

    assert speeds(extra_body={"structured_outputs": {"choice": ["no, never"]}}) == 0
    assert speeds(temperature=1, seed=1, max_tokens=12, extra_body={"ignore_eos": True}) == 1


def test_the_openapi_document_has_the_endpoints(server: Served) -> None:
    document = json.loads(get(server.port, "/openapi.json")[1])
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics"} <= set(document["paths"])
    assert "422" not in json.dumps(document["paths"]["/v1/completions"])


NEUTRAL: dict[str, Any] = {
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "prompt_logprobs": None,
    "truncate_prompt_tokens": None,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "top_k": -1,
}
"""What vLLM's clients send, and means nothing."""


def test_options_of_vllm_that_ask_for_nothing(client: openai.OpenAI) -> None:
    plain = client.completions.create(model=MODEL, prompt=QUESTIONS[0], temperature=1, seed=2)
    same = client.completions.create(model=MODEL, prompt=QUESTIONS[0], temperature=1, seed=2, extra_body=NEUTRAL)
    assert same.choices[0].text == plain.choices[0].text
    client.chat.completions.create(model=MODEL, messages=CHAT, extra_body={**NEUTRAL, "tools": []})


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown option": ({"temprature": 1}, 400, "did you mean 'temperature'"),
    "type": ({"temperature": "1"}, 400, "temperature: Input should be a valid number"),
    "true is no number": ({"max_tokens": True}, 400, "max_tokens"),
    "option of vLLM's": ({"prompt_logprobs": 2}, 400, "prompt_logprobs: it is not supported; leave it out"),
    "more than the answer may have": (
        {"min_tokens": 4, "max_tokens": 3},
        400,
        "min_tokens: 4 is more than max_tokens=3",
    ),
    "another of vLLM's": ({"truncate_prompt_tokens": 3}, 400, "truncate_prompt_tokens: it is not supported"),
    "nothing like it": ({"tokens_in_a_prompt_of": 3}, 400, "tokens_in_a_prompt_of: unknown option; there are: "),
    "top_k": ({"top_k": -2}, 400, "top_k"),
    "unknown inside": (
        {"stream_options": {"usage": True}, "stream": True},
        400,
        "stream_options.usage: unknown option",
    ),
    "key like an option": ({"logit_bias": {"schema": "a"}}, 400, "logit_bias.schema: Input should be a valid number"),
    "range": ({"top_p": 0}, 400, "top_p"),
    "another model": ({"model": "gpt"}, 404, "there is 'tiny'"),
    "another format": ({"response_format": {"type": "xml"}}, 400, "response_format"),
    "nothing asked for": ({"max_tokens": 0}, 400, "max_tokens: 0 needs echo=true"),
    "suffix": ({"suffix": " end", "echo": True}, 400, "suffix: it is not supported; leave it out"),
    "best_of": ({"best_of": 2}, 400, "best_of"),
    "too long": ({"max_tokens": 5000}, 400, "exceed the context of 4096"),
    "too many": ({"n": 100}, 400, "n: 100 answers are asked for, and this server takes on 72 at most"),
    "too many prompts": ({"prompt": ["a"] * 100}, 400, "prompt: 100 answers are asked for"),
    "empty": ({"prompt": ""}, 400, "prompt: it is empty"),
    "no tokens": ({"prompt": [-1]}, 400, "prompt: it must be a text, token ids"),
    "unknown token": ({"prompt": [480]}, 400, "outside the vocabulary of 480"),
    "bias of no token": ({"logit_bias": {"sky": 1}}, 400, "'sky' is no token id"),
    "bias beyond": ({"logit_bias": {"480": 1}}, 400, "outside the vocabulary of 480"),
    "stream_options": ({"stream_options": {"include_usage": True}}, 400, "needs stream=true"),
    "surrogate": ({"prompt": "\ud800"}, 400, "prompt"),
    "empty stop": ({"stop": ""}, 400, "stop: it must be a text"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_in_the_shape_of_openai(case: str, stream: bool, server: Served) -> None:
    options, status, told = REFUSED[case]
    if stream and "stream_options" in options:
        return
    body = json.dumps({"prompt": "Hi", "stream": stream, **options}).encode()
    got, reply = post(server.port, "/v1/completions", body)
    error = json.loads(reply)["error"]
    assert got == status and told in error["message"], error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": [{}]}, "tools"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"echo": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{}]}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"metadata": {"schema": 3}}, "metadata"),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, "messages"),
        ({"messages": [*CHAT, {"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages.2.tool_calls"),
        ({"messages": [{"role": "assistant", "content": "", "refusal": "No."}]}, "messages.0.refusal"),
        ({"messages": [*CHAT, {"role": "tool", "content": "4", "tool_call_id": "a"}]}, "messages.2.role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "Hi", "reasoning": "a"}]}, "messages"),
    ],
)
def test_refused_chats(options: dict[str, Any], told: str, server: Served) -> None:
    status, reply = post(server.port, "/v1/chat/completions", json.dumps({"messages": CHAT, **options}).encode())
    error = json.loads(reply)["error"]
    assert status == 400 and told in error["message"] and str(error["param"]).startswith(told), error


def test_what_cannot_fit_is_refused_before_it_is_read(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", None)
    for path, option, text in (
        ("/v1/completions", "prompt", {"prompt": "hello " * 500_000}),
        ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": "hello " * 500_000}]}),
    ):
        status, reply = post(server.port, path, json.dumps(text).encode())
        error = json.loads(reply)["error"]
        assert status == 400 and error["code"] == "context_length_exceeded" and error["param"] == option, error
        assert "are more than 4096 tokens, the context, can stand for" in error["message"]


def test_an_answer_can_be_sent_back_as_it_came(client: openai.OpenAI, engine: Engine) -> None:
    message = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8).choices[0].message
    chat: Any = [*CHAT, message, {"role": "user", "content": "And why is it red?"}]
    again = client.chat.completions.create(model=MODEL, messages=chat, max_tokens=8)
    own = {"role": "assistant", "content": message.content}
    [expected] = engine.generate([[*CHAT, own, chat[-1]]], max_new_tokens=8)
    assert again.choices[0].message.content == expected.text
    empty: Any = {**own, "tool_calls": [], "function_call": None, "audio": None, "annotations": [], "parsed": {"a": 1}}
    kept = client.chat.completions.create(model=MODEL, messages=[*CHAT, empty, chat[-1]], max_tokens=8)
    assert kept.choices[0].message.content == expected.text


def test_messages_without_text(client: openai.OpenAI, engine: Engine) -> None:
    ask: Any = {"role": "user", "content": "Go on."}
    [expected] = engine.generate([[*CHAT, {"role": "assistant", "content": ""}, ask]], max_new_tokens=8)
    for silent in ({"content": None, "reasoning_content": None}, {}, {"content": ""}):
        messages: Any = [*CHAT, {"role": "assistant", **silent}, ask]
        reply = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
        assert reply.choices[0].message.content == expected.text
    empty: Any = [{"role": "user", "content": ""}]
    [expected] = engine.generate(engine.tokenizer.chat(empty), max_new_tokens=8)
    reply = client.chat.completions.create(model=MODEL, messages=empty, max_tokens=8)
    assert reply.choices[0].message.content == expected.text
    assert client.completions.create(model=MODEL, prompt=" ", max_tokens=2).choices[0].text


TOOLS = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}
{{ c.function.arguments | tojson }}]{% endfor %}{% if m.role == 'tool' %}{{ m.tool_call_id }}{% endif %}{% endfor %}"""


def test_earlier_calls_of_tools_are_the_templates(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    result = {"role": "tool", "content": "4", "tool_call_id": "a"}
    messages = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    tokenizer = server.service.engine.tokenizer
    monkeypatch.setattr(tokenizer, "_template", ChatTemplate(TOOLS, {}, "here"))
    rendered: list[str] = []

    def encode(text: str) -> list[int]:
        rendered.append(text)
        return [40]

    monkeypatch.setattr(tokenizer, "encode_rendered", encode)
    status, reply = post(server.port, "/v1/chat/completions", json.dumps({"messages": messages}).encode())
    assert status == 200, reply
    assert rendered[0].endswith('<assistant>[add\n{"a": 2}]<tool>4a')
    wrong = {"role": "assistant", "tool_calls": [3]}
    status, reply = post(server.port, "/v1/chat/completions", json.dumps({"messages": [*CHAT, wrong]}).encode())
    assert status == 400 and "the model's chat template refuses them" in json.loads(reply)["error"]["message"]


def test_no_error_speaks_of_the_command_line(server: Served) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": ""}),
        ("/v1/completions", {"prompt": ["Hi", ""]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]}),
    ):
        error = json.loads(post(server.port, path, json.dumps(body).encode())[1])["error"]["message"]
        assert "empty" in error or "missing" in error
        assert "=" not in error
    assert b"=" not in get(server.port, "/v1/models", Host="evil.example")[1]


def test_negative_seeds(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": QUESTIONS[0], "temperature": 1.0, "max_tokens": 8}
    texts = [client.completions.create(**asked, seed=seed).choices[0].text for seed in (-1, -1, -2, -(2**63))]
    assert texts[0] == texts[1] and len(set(texts)) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_point_into_the_text(stream: bool, client: openai.OpenAI) -> None:
    """Characters of several tokens included, which are told of before they are complete."""
    asked: Any = {"model": MODEL, "prompt": QUESTIONS[0], "max_tokens": 40, "logprobs": 0, "stream": stream}
    asked |= {"extra_body": {"structured_outputs": {"regex": "hi 😀🦄 abc 我爱你 end"}}}
    replies = client.completions.create(**asked)
    choices = [reply.choices[0] for reply in replies] if stream else [replies.choices[0]]
    text = "".join(choice.text for choice in choices)
    told = [one for c in choices if c.logprobs for one in zip(c.logprobs.tokens, c.logprobs.text_offset, strict=True)]
    assert text == "hi 😀🦄 abc 我爱你 end" and any(token.startswith("bytes:") for token, _ in told)
    assert [offset for _, offset in told] == sorted(offset for _, offset in told)
    for token, offset in told:
        # behind its end the answer goes on with tokens that are no text
        whole = "" if token.startswith("bytes:") else token.replace("</s>", "")
        assert text.startswith(whole, offset) and (token != "</s>" or offset == len(text)), (token, offset)


def test_tokens_that_are_parts_of_a_character_are_told_apart(client: openai.OpenAI, engine: Engine) -> None:
    asked: Any = {"model": MODEL, "prompt": QUESTIONS[0], "max_tokens": 12, "logprobs": 20, "temperature": 0}
    asked |= {"extra_body": {"structured_outputs": {"regex": "😀🦄我"}}}
    logprobs = client.completions.create(**asked).choices[0].logprobs
    [answer] = engine.generate(QUESTIONS[0], chat=False, logprobs=20, constraint={"name": "regex", "pattern": "😀🦄我"})
    assert logprobs is not None and logprobs.top_logprobs is not None
    assert logprobs.tokens is not None and logprobs.tokens[0] == r"bytes:\xf0"
    partial = 0
    for told, own in zip(logprobs.top_logprobs, answer.logprobs, strict=True):
        texts = {engine.tokenizer.bytes_of(token) for token, _ in (*own.top, (own.token, 0.0))}
        assert len(told) == len(texts) and list(told.values()) == sorted(told.values(), reverse=True)
        partial += sum(key.startswith("bytes:") for key in told) > 1
    assert partial


def test_a_prompt_that_leaves_no_room_is_blamed_itself(server: Served) -> None:
    status, reply = post(server.port, "/v1/completions", json.dumps({"prompt": [40] * 4096}).encode())
    error = json.loads(reply)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert error["message"] == "prompt: its 4096 tokens leave no room for an answer in the context of 4096"


UNREAD: dict[str, tuple[bytes, str]] = {
    "long number": (b'{"seed":' + b"1" * 5000 + b"}", "the body has a number of more than 4300 digits"),
    "no UTF-8": (b'{"prompt":"\xff"}', "the body is no UTF-8: invalid start byte at byte 11"),
    "deep": (b'{"prompt":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "the body is nested too deeply"),
    "cut": (b'{"prompt":', "the body is no JSON: Expecting value at character 10"),
    "list": (b"[]", "the body must be a JSON object"),
    "null": (b"null", "the body must be a JSON object"),
    "empty": (b"", "the body must be a JSON object"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_unreadable_bodies_are_told_why(case: str, server: Served) -> None:
    body, told = UNREAD[case]
    status, reply = post(server.port, "/v1/completions", body)
    error = json.loads(reply)["error"]
    assert status == 400 and error["code"] == "invalid_json" and error["message"].startswith(told), error
    status, reply = post(server.port, "/v1/completions", b'{"prompt":"Hi"}', **{"Content-Type": "text/plain"})
    assert status == 400 and json.loads(reply)["error"]["message"] == "Content-Type: it must be application/json"


def test_malformed_bodies(server: Served) -> None:
    for body in (b"", b"{", b"[]", b"\xff\xfe", b"1", b"null", b"[" * 100_000, b'{"a":' * 5000):
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, reply = post(server.port, path, body)
            assert status == 400 and json.loads(reply)["error"]["message"], (body[:20], status)
    assert post(server.port, "/nowhere", b"{}")[0] == 404
    assert get(server.port, "/v1/completions")[0] == 405
