"""The worker's side of a peer: answer the requests that come in as JSON lines, and say when each token came.

Imports the standard library only: it runs in the interpreter of the peer, which need not have spec_sdk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

Take = Callable[[list[int]], None]
"""Takes new tokens as they come, in groups as the program gives them."""
Answer = Callable[[list[int], int, Take], None]
"""Answers prompt tokens with so many new ones."""


def own_stdout() -> TextIO:
    """A writer to what is stdout now. From here on, whatever the program itself prints goes to stderr."""
    sys.stdout.flush()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def serve(replies: TextIO, answer: Answer, facts: dict[str, Any]) -> None:
    """Say ``facts``, then answer each line of stdin, ``{"tokens": […], "new_tokens": n}``, until it is closed.

    A reply has ``tokens`` and ``arrivals``: seconds since the request came, and how many tokens were there by then.
    """
    _say(replies, {"ready": facts})
    for line in sys.stdin:
        request = json.loads(line)
        _say(replies, _timed(answer, request["tokens"], request["new_tokens"]))


def _timed(answer: Answer, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    began = time.perf_counter()

    def take(group: list[int]) -> None:
        tokens.extend(group)
        arrivals.append((time.perf_counter() - began, len(tokens)))

    answer(prompt, new_tokens, take)
    return {"tokens": tokens, "arrivals": arrivals}


def _say(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()
