"""Requests that nobody means: every one is answered, or refused in one line, and none brings the server down."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_sdk import Engine
from spec_sdk.serve.bodies import ChatBody, CompletionBody
from tests.support.serving import PATIENCE_S, Served, get, post, served

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.text(max_size=20) | st.lists(st.integers(-1, 500), max_size=5) | st.lists(st.text(max_size=9)),
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool"]), "content": st.text()})
    ),
    "temperature": st.floats(0, 3),
    "top_p": st.floats(-0.1, 1.1),
    "n": st.integers(0, 4),
    "max_tokens": st.integers(0, 70),
    "stream": st.booleans(),
    "logprobs": st.integers(-1, 21) | st.booleans(),
    "logit_bias": st.dictionaries(st.integers(-1, 500).map(str), st.floats(-101, 101), max_size=4),
    "seed": st.integers(-1, 2**64),
    "echo": st.booleans(),
    "min_tokens": st.integers(-1, 4),
    "tools": st.lists(st.just({"type": "function", "function": {"name": "add"}}) | ANYTHING, max_size=2),
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | ANYTHING,
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=17),
}
"""Values that are often, but not always, right."""


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    body, needed = (ChatBody, "messages") if "chat" in path else (CompletionBody, "prompt")
    options = [name for name in body.model_fields if name != needed]
    some = {name: LIKELY.get(name, ANYTHING) for name in options}
    return st.fixed_dictionaries({needed: LIKELY[needed] | ANYTHING}, optional={"unknown": ANYTHING, **some})


@pytest.fixture(scope="module")
def fuzzed(checkpoint: Path) -> Iterator[Served]:
    """Of a short context, so that no request takes long."""
    options = ["policy=fixed", "model.context=64", "ignore_eos=true"]
    with served(Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=options), length=4) as running:
        yield running


def ask(path: str, body: bytes, server: Served) -> int:
    status, reply = post(server.port, path, body)
    text = reply.decode()
    assert status in (200, 400, 404) and "Traceback" not in text, (status, text, body)
    if status != 200:
        error = json.loads(text)["error"]
        assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 2000, error
    return status


def test_bodies_of_odd_values(fuzzed: Served, scale: Callable[[int, int], int]) -> None:
    seen = set()

    @settings(
        max_examples=scale(120, 3000),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(["/v1/completions", "/v1/chat/completions"]))
        # NaN and Infinity are written as Python writes them: no JSON, and many a server takes them
        seen.add(ask(path, json.dumps(data.draw(bodies(path))).encode(), fuzzed))

    check()
    assert {200, 400} <= seen


def test_bytes(fuzzed: Served, scale: Callable[[int, int], int]) -> None:
    good = b'{"prompt": "Hi", "max_tokens": 2, "stop": ["x"]}'

    @settings(max_examples=scale(60, 2000), deadline=None, derandomize=True, database=None)
    @given(st.binary(max_size=4), st.integers(0, len(good)), st.integers(0, 5))
    def check(noise: bytes, place: int, cut: int) -> None:
        ask("/v1/completions", good[:place] + noise + good[place + cut :], fuzzed)

    check()
    assert get(fuzzed.port, "/health")[0] == 200


def test_by_the_openapi_document(fuzzed: Served, scale: Callable[[int, int], int]) -> None:
    """schemathesis, but for its claim that what a schema allows must be accepted: an empty prompt is not."""
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("needs the extra fuzz")
    run = [sys.executable, "-m", "schemathesis.cli", "run", f"{fuzzed.url}/openapi.json", "--seed", "1"]
    options = ["--max-examples", str(scale(5, 100)), "--exclude-checks", "positive_data_acceptance", "--no-color"]
    done = subprocess.run(
        [*run, *options, "--request-timeout", str(PATIENCE_S)], capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None and int(found[1]) > 100
    assert get(fuzzed.port, "/health")[0] == 200
