"""The worker's side of a peer: answer the requests that come in as JSON lines, and say when each token came.

Imports the standard library only: it runs in the interpreter of the peer, which need not have spec_sdk installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1
"""Of prctl(2), Linux."""


@dataclass(frozen=True)
class Request:
    """Token ids to answer with at most ``new_tokens`` new ones, none after one of ``stop_ids``, which is kept.

    ``temperature`` 0 is greedy. ``seed``: of the answer's random numbers. The other parameters are off by default.
    """

    tokens: list[int]
    new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


Take = Callable[[list[int]], None]
"""Takes new tokens as they come, in groups as the program gives them."""
Answer = Callable[[Request, Take], None]


def own_stdout() -> TextIO:
    """A writer to what is stdout now. From here on, whatever the program itself prints goes to stderr.

    On Linux the process also ends with the thread that started it, even while it is stopped (SIGSTOP); elsewhere it
    ends when its stdin is closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.stdout.flush()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def serve(replies: TextIO, answer: Answer, facts: dict[str, Any]) -> None:
    """Say ``facts``, then answer each line of stdin, the fields of a :class:`Request`, until it is closed.

    A reply has ``tokens``, ``arrivals`` (seconds since the request came, and how many tokens were there by then) and
    ``peak_bytes``, the most memory that the process held meanwhile. Where the program raises, it has ``error``, a line.
    """
    _say(replies, {"ready": facts})
    for line in sys.stdin:
        fields = json.loads(line)
        request = Request(**{**fields, "stop_ids": tuple(fields.get("stop_ids", ()))})
        try:
            reply = _timed(answer, request)
        except Exception as error:
            reply = {"error": (str(error).strip() or type(error).__name__).splitlines()[0]}
        _say(replies, reply)


def _timed(answer: Answer, request: Request) -> dict[str, Any]:
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    _forget_peak()
    began = time.perf_counter()

    def take(group: list[int]) -> None:
        tokens.extend(group)
        arrivals.append((time.perf_counter() - began, len(tokens)))

    answer(request, take)
    return {"tokens": tokens, "arrivals": arrivals, "peak_bytes": _peak_bytes()}


def _forget_peak() -> None:
    """Set the high-water mark of resident memory back, where the system can: Linux (proc(5), clear_refs)."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _peak_bytes() -> int:
    """The process's high-water mark of resident memory."""
    if sys.platform == "linux":
        # not getrusage: there, it counts what the process that started this one held
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")), 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others KiB
    return peak if sys.platform == "darwin" else peak * 1024


def _say(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()
