"""The answers to one request: all its prompts at the engine at once, their parts in the order in which they come."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request

from spec_sdk.api.answer import Part
from spec_sdk.api.engine import Engine
from spec_sdk.errors import ConstraintLimit, OneLineError
from spec_sdk.say import say
from spec_sdk.serve.asking import Asked
from spec_sdk.serve.counts import Counts, FirstTokens
from spec_sdk.serve.echo import without_tokens
from spec_sdk.serve.faults import Refusal, unsound
from spec_sdk.serve.structured import limit_reached

T = TypeVar("T")


class ClientLeft(Exception):
    """Nobody is there any more to be answered."""


async def parts_of(asked: Asked, engine: Engine, counts: Counts) -> AsyncGenerator[tuple[int, Part], None]:
    """The parts of all answers, each with the answer's ``index``. Closing it cancels what goes on.

    The engine never waits for whoever reads them. Raises Refusal where an answer fails: with status 400 if its grammar
    cannot be followed any further, else 500.
    """
    began = time.monotonic()
    queue: asyncio.Queue[tuple[int, Part] | BaseException | None] = asyncio.Queue()
    open_answers = {index: None for index in range(asked.answers)}
    first_tokens: dict[int, FirstTokens] = {}

    def take(index: int, part: Part) -> None:
        if asked.prompts_only:
            part = without_tokens(part)
        counts.tokens(len(part.tokens))
        if part.tokens and index not in first_tokens:
            first_tokens[index] = FirstTokens(time.monotonic(), len(part.tokens))
            counts.first_token.observe(first_tokens[index].at - began)
        if part.answer is not None:
            del open_answers[index]
            counts.left(1)
            counts.ended(part.answer, first_tokens.get(index))
        queue.put_nowait((index, part))

    async def follow(prompt: int) -> None:
        try:
            async with aclosing(engine.astream(asked.prompts[prompt], **asked.options[prompt])) as parts:
                async for part in parts:
                    take(prompt * asked.n + part.sample, part)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    counts.begun(asked.answers)
    followers = [asyncio.create_task(follow(prompt)) for prompt in range(len(asked.prompts))]
    try:
        ended = 0
        while ended < len(followers):
            item = await queue.get()
            if item is None:
                ended += 1
            elif isinstance(item, ConstraintLimit):
                raise limit_reached(item, asked.structured) from item
            elif isinstance(item, BaseException):
                tell_of(item)
                raise unsound() from item
            elif item[1].finish_reason == "interrupted":
                # by nobody who reads this: the engine was ended
                raise unsound()
            else:
                yield item
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        counts.left(len(open_answers))
        counts.seconds.observe(time.monotonic() - began)


async def unless(work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, Exception]) -> T:
    """What ``work`` gives. If one of ``others`` is done before it, work is cancelled, and what that one gave raised."""
    task = asyncio.create_task(work)
    watches = [asyncio.create_task(other) for other in others]
    try:
        await asyncio.wait({task, *watches}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise next(watch.result() for watch in watches if watch.done())
    finally:
        for one in (task, *watches):
            one.cancel()
        await asyncio.gather(task, *watches, return_exceptions=True)


async def left(request: Request) -> Exception:
    """When the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return ClientLeft()


async def shut_down(ending: asyncio.Event) -> Exception:
    """When the server ends before its answers do."""
    await ending.wait()
    return Refusal(503, "the server is shutting down", code="shutting_down")


def tell_of(error: BaseException) -> None:
    """An error on stderr, where it came from, and without its message where that may quote a prompt."""
    if isinstance(error, OneLineError):
        say(f"error: {error}")
        return
    frames = "".join(traceback.format_tb(error.__traceback__))
    print(f"error: {type(error).__name__}, at\n{frames}", file=sys.stderr, end="", flush=True)
