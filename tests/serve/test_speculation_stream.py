"""``stream_options.include_speculation``: the trees that a stream tells of are those of its answer, and of no other."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from spec_sdk import Engine
from tests.serve.test_answers import CHAT, QUESTIONS
from tests.support.serving import MODEL, Served, post

ASKED: Any = {"stream": True, "stream_options": {"include_usage": True, "include_speculation": True}}


def steps_of(chunks: list[Any]) -> dict[int, list[dict[str, Any]]]:
    """Steps by the choices' index."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            told = (choice.model_extra or {}).get("speculation")
            assert told is None or set(told) == {"steps"}
            steps.setdefault(choice.index, []).extend(told["steps"] if told else [])
    return steps


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_accepted_paths_put_together_are_the_answer(
    sampling: dict[str, Any], client: openai.OpenAI, engine: Engine
) -> None:
    prompts: Any = list(QUESTIONS[:2])
    chunks = list(client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=14, **sampling, **ASKED))
    alone = [a for p in prompts for a in engine.generate(p, chat=False, n=2, max_new_tokens=14, **sampling)]
    steps = steps_of(chunks)
    assert sorted(steps) == [0, 1, 2, 3]
    drafted = accepted = passes = 0
    for index, answer in enumerate(alone):
        tokens: list[int] = []
        for number, step in enumerate(steps[index], 1):
            assert step["number"] == number
            nodes, path = step["nodes"], step["path"]
            assert nodes[0]["parent"] is None and all(0 <= n["parent"] < i for i, n in enumerate(nodes) if i)
            assert [nodes[node]["parent"] for node in path] == [None, *path[:-1]]
            kept = [nodes[node]["token"] for node in path[1:]]
            assert [t["token"] for t in step["tokens"]][: len(kept)] == kept
            assert [t["node"] for t in step["tokens"] if t["source"] == "drafted"] == path[1:]
            if tokens:
                assert nodes[0]["token"] == tokens[-1]
            tokens += [t["token"] for t in step["tokens"]]
            depths = [0]
            for node in nodes[1:]:
                depths.append(depths[node["parent"]] + 1)
            drafted, accepted, passes = drafted + max(depths), accepted + len(kept), passes + 1
        assert tokens == answer.tokens
        text = "".join(c.text for chunk in chunks for c in chunk.choices if c.index == index)
        assert text.startswith("".join(t["text"] for step in steps[index] for t in step["tokens"]))
    told = chunks[-1].usage
    assert told is not None
    speculation: Any = (told.model_extra or {})["speculation"]
    assert (speculation["drafted_tokens"], speculation["accepted_tokens"]) == (drafted, accepted)
    assert speculation["target_passes"] == passes and accepted > 0


def test_a_chat_has_them_too(client: openai.OpenAI, engine: Engine) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=CHAT, **ASKED))
    [answer] = engine.generate([CHAT], max_new_tokens=12)
    assert [t["token"] for step in steps_of(chunks)[0] for t in step["tokens"]] == answer.tokens


def test_only_who_asks_is_told(client: openai.OpenAI) -> None:
    plain: Any = {"stream": True, "stream_options": {"include_usage": True, "include_speculation": False}}
    asking = client.completions.create(model=MODEL, prompt=QUESTIONS[0], max_tokens=40, **ASKED)
    first = next(iter(asking))
    other = list(client.completions.create(model=MODEL, prompt=QUESTIONS[1], max_tokens=8, **plain))
    assert steps_of([first, *asking])[0] and not steps_of(other)[0]
    assert not any("speculation" in (choice.model_extra or {}) for chunk in other for choice in chunk.choices)


def test_it_is_for_streams(server: Served) -> None:
    for options in ({"include_speculation": True}, {"include_speculation": "yes"}):
        body = json.dumps({"prompt": "Hi", "stream": "yes" in options.values(), "stream_options": options}).encode()
        status, reply = post(server.port, "/v1/completions", body)
        assert status == 400 and "stream_options" in json.loads(reply)["error"]["message"]
