"""Awaited requests: one engine's steps for all of them, and cancellation."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spec_sdk import Engine, Part, UserError
from tests.api.conftest import PROMPTS


def count_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests every later step of the engine serves."""
    served: list[int] = []
    step = engine.pipeline.engine.scheduler.step

    def counted() -> Any:
        served.append(engine.pipeline.engine.scheduler.requests)
        return step()

    monkeypatch.setattr(engine.pipeline.engine.scheduler, "step", counted)
    return served


def test_awaited_requests_share_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [answer.tokens for answer in engine.generate(PROMPTS)]
    steps = max(len(list(engine.stream(prompt))) for prompt in PROMPTS)
    served = count_steps(engine, monkeypatch)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(engine.agenerate(prompt) for prompt in PROMPTS))

    answers = asyncio.run(ask())
    assert [answer.tokens for [answer] in answers] == expected
    # a step prefills one prompt
    assert served[0] == len(PROMPTS) and len(served) <= steps + len(PROMPTS)


def test_an_async_stream_gives_the_parts_of_a_stream(engine: Engine) -> None:
    async def parts() -> list[Part]:
        return [part async for part in engine.astream(PROMPTS[0], max_new_tokens=7)]

    # of one event loop after the other
    for _ in range(2):
        streamed, expected = asyncio.run(parts()), list(engine.stream(PROMPTS[0], max_new_tokens=7))
        assert [(p.text, p.tokens, p.finish_reason) for p in streamed] == [
            (p.text, p.tokens, p.finish_reason) for p in expected
        ]


def test_the_event_loop_goes_on_while_the_engine_steps(engine: Engine) -> None:
    async def ticking() -> int:
        ticks, asked = 0, asyncio.ensure_future(engine.agenerate(PROMPTS[0], max_new_tokens=30))
        while not asked.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert asyncio.run(ticking()) > 100


def test_cancelling_a_task_cancels_its_request_alone(engine: Engine) -> None:
    expected = engine.generate(PROMPTS[1], max_new_tokens=30)[0].tokens

    async def run() -> list[int]:
        begun = asyncio.Event()

        async def listen() -> None:
            async for _ in engine.astream(PROMPTS[0], max_new_tokens=3000):
                begun.set()

        cancelled = asyncio.ensure_future(listen())
        also = asyncio.ensure_future(engine.agenerate(PROMPTS[2], max_new_tokens=3000))
        kept = asyncio.ensure_future(engine.agenerate(PROMPTS[1], max_new_tokens=30))
        await begun.wait()
        for task in (cancelled, also):
            task.cancel()
        [answer] = await kept
        for task in (cancelled, also):
            with pytest.raises(asyncio.CancelledError):
                await task
        return answer.tokens

    assert asyncio.run(run()) == expected
    assert not engine.pipeline.engine.busy


def test_a_loop_that_ends_in_the_middle_leaves_nothing_behind(engine: Engine) -> None:
    async def leave() -> None:
        task = asyncio.ensure_future(engine.agenerate(PROMPTS[0], max_new_tokens=3000))
        await asyncio.sleep(0.05)
        assert not task.done()

    asyncio.run(leave())
    expected = engine.generate(PROMPTS[0])[0].tokens
    assert len(expected) == 12 and not engine.pipeline.engine.busy


def test_threads_share_steps_too(engine: Engine) -> None:
    expected = [answer.tokens for answer in engine.generate(PROMPTS)]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        for _ in range(3):
            answers = threads.map(lambda prompt: engine.generate(prompt)[0].tokens, PROMPTS)
            assert list(answers) == expected
    assert not engine.pipeline.engine.busy


def test_errors_are_raised_where_they_are_awaited(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused() -> None:
        await engine.agenerate(PROMPTS[0], top_p=0)

    with pytest.raises(UserError, match="sampling.top_p"):
        asyncio.run(refused())

    async def failing() -> list[Any]:
        both = (engine.agenerate(prompt) for prompt in PROMPTS[:2])
        return await asyncio.gather(*both, return_exceptions=True)

    with monkeypatch.context() as patch:
        # the scheduler ends all of them when a step raises
        patch.setattr(engine.pipeline.engine.scheduler, "step", lambda: ending(engine))
        outcomes = asyncio.run(failing())
    assert [str(outcome) for outcome in outcomes] == ["the step is broken"] * 2
    assert len(engine.generate(PROMPTS[0])[0].tokens) == 12


def ending(engine: Engine) -> None:
    """A step that raises after it ended all requests, as the scheduler's does."""
    for number in range(10**4):
        engine.pipeline.engine.scheduler.cancel(number)
    raise RuntimeError("the step is broken")
