"""Clients of task=serve that behave in all the ways in which clients do: they read, watch the trees of every step,
dawdle, leave, and send rubbish.

Over plain sockets, so that it is known what is sent and when it is read.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SLOW_BYTES, SLOW_PAUSE_S = 2048, 0.01
"""A slow reader takes so much, then rests."""
RECEIVE_BUFFER = 4096
"""Of a slow reader's socket: what it has not read yet soon waits at the server."""
KINDS = {"whole": 8, "stream": 4, "watched": 2, "slow": 2, "leaver": 2, "malformed": 2}
"""Of every twenty requests so many of each kind."""
RUBBISH = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 20_000,
    b'{"prompt": 5}',
    b'{"prompt": "a", "temperature": "warm"}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": [1, "a"]}',
    b'{"prompt": "a", "n": 1e9}',
    b'{"prompt": "a", "logit_bias": {"-1": 1}}',
    b'{"messages": []}',
)


@dataclass(frozen=True)
class Case:
    """One request. ``leave_after``: events after which a leaver closes its connection."""

    kind: str
    path: str
    body: bytes
    leave_after: int = 0

    def alone(self) -> Case:
        """The same request, answered as a whole."""
        asked = {key: value for key, value in json.loads(self.body).items() if key not in ("stream", "stream_options")}
        return Case("whole", self.path, json.dumps(asked).encode())


@dataclass
class Outcome:
    """What came back. ``texts`` and ``reasons`` by the choices' index; ``complete``: to the end that was promised.

    ``traced``: tokens that the steps told of.
    """

    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    traced: int = 0
    seconds: float = 0.0
    first_token_s: float | None = None

    @property
    def answer(self) -> tuple[Any, ...]:
        """What must not depend on who else asks."""
        return self.texts, self.reasons, self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")


def cases_of(count: int, prompts: Sequence[str], new_tokens: int, seed: int = 0) -> list[Case]:
    """``count`` requests of all kinds in an order that the seed chooses, each with options of its own."""
    draw = random.Random(seed)
    kinds = [kind for kind, times in KINDS.items() for _ in range(times)]
    order = [kinds[i % len(kinds)] for i in range(count)]
    draw.shuffle(order)
    return [_case(kind, number, prompts[number % len(prompts)], new_tokens, draw) for number, kind in enumerate(order)]


def _case(kind: str, number: int, prompt: str, new_tokens: int, draw: random.Random) -> Case:
    chat = draw.random() < 0.5
    path = "/v1/chat/completions" if chat else "/v1/completions"
    if kind == "malformed":
        return Case(kind, path, draw.choice(RUBBISH))
    # the number makes every prompt another one: an answer to the wrong request shows
    text = f"{prompt} ({number})"
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    asked["max_tokens"] = draw.randint(new_tokens // 2, new_tokens)
    asked |= draw.choice(
        (
            {},
            {},
            {"temperature": 0.8, "seed": number},
            {"temperature": 1.0, "top_p": 0.9, "seed": number, "n": 2},
            {"presence_penalty": 0.5, "frequency_penalty": 0.3},
            {"stop": ["the", "\n"]},
        )
    )
    if kind != "whole":
        asked |= {"stream": True, "stream_options": {"include_usage": True, "include_speculation": kind == "watched"}}
    if kind == "slow":
        # hundreds of bytes for every token
        asked |= {"logprobs": True, "top_logprobs": 20} if chat else {"logprobs": 20}
    if kind == "leaver":
        asked["max_tokens"] = 4 * new_tokens
    return Case(kind, path, json.dumps(asked).encode(), draw.randint(0, 4))


async def answered(case: Case, port: int) -> Outcome:
    """The outcome of a case. One that is refused for want of room asks again, as often as it takes."""
    while True:
        outcome = await _asked(case, port)
        if outcome.status != 429:
            return outcome
        await asyncio.sleep(0.05)


async def load(cases: Sequence[Case], port: int, concurrency: int) -> list[Outcome]:
    """The outcomes of all cases, so many at a time."""
    room = asyncio.Semaphore(concurrency)

    async def one(case: Case) -> Outcome:
        async with room:
            return await answered(case, port)

    return list(await asyncio.gather(*map(one, cases)))


def faults(cases: Sequence[Case], outcomes: Sequence[Outcome], alone: Sequence[Outcome | None]) -> list[str]:
    """What is wrong with outcomes, a line each. ``alone``: the same requests' by themselves, None where none is due."""
    found = []
    for number, (case, outcome, own) in enumerate(zip(cases, outcomes, alone, strict=True)):
        where = f"request {number} ({case.kind})"
        if case.kind == "malformed":
            if outcome.status != 400 or "message" not in outcome.error:
                found.append(f"{where}: a malformed body has status {outcome.status}")
        elif outcome.status != 200:
            found.append(f"{where}: status {outcome.status}: {outcome.error}")
        elif case.kind != "leaver" and not outcome.complete:
            found.append(f"{where}: the answer was lost half way")
        elif case.kind == "watched" and outcome.traced != outcome.usage.get("completion_tokens"):
            found.append(f"{where}: steps of {outcome.traced} tokens, and {outcome.usage} are told")
        elif own is not None and outcome.answer != own.answer:
            found.append(f"{where}: {outcome.answer} is not its answer alone, {own.answer}")
    return found


async def _asked(case: Case, port: int) -> Outcome:
    began, outcome = time.perf_counter(), Outcome()
    plug = socket.socket()
    if case.kind == "slow":
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
    # what the reader itself keeps beyond this stays in the socket
    reader, writer = await asyncio.open_connection(sock=plug, limit=2**12 if case.kind == "slow" else 2**20)
    try:
        head = f"POST {case.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(case.body)}"
        writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + case.body)
        await writer.drain()
        header = await reader.readuntil(b"\r\n\r\n")
        outcome.status = int(header.split(b" ", 2)[1])
        if outcome.status == 200 and case.kind not in ("whole", "malformed"):
            await _read_events(case, reader, outcome, began)
        else:
            _take_whole(json.loads(await reader.read()), outcome)
    finally:
        writer.close()
        outcome.seconds = time.perf_counter() - began
    return outcome


async def _read_events(case: Case, reader: asyncio.StreamReader, outcome: Outcome, began: float) -> None:
    """Server-sent events in a chunked body, whose framing is passed over: no event has a line break in it."""
    rest, events = b"", 0
    while True:
        if case.kind == "leaver" and events >= case.leave_after:
            return
        received = await reader.read(SLOW_BYTES if case.kind == "slow" else 2**16)
        if not received:
            return
        if case.kind == "slow":
            await asyncio.sleep(SLOW_PAUSE_S)
        *lines, rest = (rest + received).split(b"\r\n")
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            events += 1
            if line.startswith(b"data: [DONE]"):
                outcome.complete = True
                continue
            _take_chunk(json.loads(line.removeprefix(b"data: ")), outcome)
            if outcome.first_token_s is None and any(outcome.texts.values()):
                outcome.first_token_s = time.perf_counter() - began


def _take_chunk(chunk: dict[str, Any], outcome: Outcome) -> None:
    outcome.error = chunk.get("error", outcome.error)
    outcome.usage = chunk.get("usage") or outcome.usage
    for choice in chunk.get("choices", ()):
        index, text = choice["index"], choice.get("text", choice.get("delta", {}).get("content", ""))
        outcome.texts[index] = outcome.texts.get(index, "") + (text or "")
        outcome.reasons[index] = choice["finish_reason"] or outcome.reasons.get(index)
        outcome.traced += sum(len(step["tokens"]) for step in choice.get("speculation", {}).get("steps", ()))


def _take_whole(reply: dict[str, Any], outcome: Outcome) -> None:
    outcome.error = reply.get("error", {})
    outcome.usage = reply.get("usage", {})
    for choice in reply.get("choices", ()):
        outcome.texts[choice["index"]] = choice["text"] if "text" in choice else choice["message"]["content"]
        outcome.reasons[choice["index"]] = choice["finish_reason"]
    outcome.complete = "choices" in reply
