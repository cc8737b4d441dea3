"""Steps of an engine for the tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from spec_sdk.api.serving import Serving


class AsyncSteps:
    """Makes steps in a thread while any request goes on, and wakes all tasks that wait after each of them.

    The tasks share the steps: what each waits for is in its mailbox. ``lock`` is held during a step; a task takes it to
    begin a request between two. Belongs to the event loop that runs when it is made.
    """

    def __init__(self, serving: Serving) -> None:
        self.lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._serving = serving
        self._stepped = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        # always the same one: every thread that computes has as many OpenMP threads of its own as there are cores
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spec-sdk-steps")

    def of_running_loop(self) -> bool:
        """Whether the event loop that runs is its own."""
        return asyncio.get_running_loop() is self._loop

    async def next(self) -> None:
        """Wait for the end of a step."""
        stepped = self._stepped
        if self._driver is None or self._driver.done():
            self._driver = self._loop.create_task(self._drive())
        await stepped.wait()

    async def _drive(self) -> None:
        try:
            while self._serving.busy:
                async with self.lock:
                    # what a step fails with is in the answers that it ended
                    with contextlib.suppress(Exception):
                        await self._loop.run_in_executor(self._thread, self._serving.step)
                self._wake()
        finally:
            self._wake()

    def _wake(self) -> None:
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()
