"""Requests from when they are added until they end: those that wait, those that have a slot, how they leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from spec_sdk.engine.event_queue import EventQueue
from spec_sdk.engine.turn import Active, Progress
from spec_sdk.errors import ConstraintLimit, RequestError, cause_of


class Roster:
    """``waiting`` for one of the ``slots``, and ``active``, which have one. ``progress``: what became of each in
    the step that runs. ``told``: events that are to be emitted.

    ``finish`` is called of those that leave their slot.
    """

    def __init__(self, slots: int, finish: Callable[[Active], None]) -> None:
        self.waiting: deque[Active] = deque()
        self.active: list[Active] = []
        self.progress: list[Progress] = []
        self.events = EventQueue()
        self._slots = slots
        self._left: list[int] = []
        # how many were ever given out: a server may have room for far more requests than ever come at once
        self._used = 0
        self._finish = finish

    @property
    def free(self) -> list[int]:
        """Slots that a request may have: those that were left, and the first that nobody had yet."""
        return self._left if self._used == self._slots else [*self._left, self._used]

    def admit(self, active: Active, slot: int) -> None:
        """Give a request one of the ``free`` slots."""
        if slot == self._used:
            self._used += 1
        else:
            self._left.remove(slot)
        active.state.slot = slot
        self.active.append(active)

    def __len__(self) -> int:
        """How many requests have not ended."""
        return len(self.waiting) + len(self.active)

    def all(self) -> list[Active]:
        """Those that have not ended; those that wait come last."""
        return [*self.active, *self.waiting]

    def ending(self, requests: Sequence[Active]) -> Ending:
        """An error inside ends these requests, or the one that it names, and no others."""
        return Ending(self, requests)

    def end(self, active: Active, reason: str, error: Exception | None = None) -> None:
        """Let a request leave, for ``reason`` or over an error; nothing where it has ended."""
        if active.ended:
            return
        fault = self.leave(active)
        # of two errors the first says more
        if fault is not None and error is None:
            reason, error = "error", fault
        if error is not None:
            self.progress.append(Progress(active.state.id, [], reason, error))
        self.events.end(active, reason)

    def leave(self, active: Active) -> Exception | None:
        """Give up its place; what ``finish`` fails with."""
        active.ended = True
        if active in self.waiting:
            self.waiting.remove(active)
            return None
        self.active.remove(active)
        self._left.append(active.slot)
        try:
            self._finish(active)
        except Exception as fault:
            return fault
        return None


class Ending:
    """Entered around what is done for requests: an error ends the one that it names, or all of them, and goes no
    further.
    """

    # no generator: it is entered ten times in a step

    __slots__ = ("_requests", "_roster")

    def __init__(self, roster: Roster, requests: Sequence[Active]) -> None:
        self._roster, self._requests = roster, requests

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        named = error.request if isinstance(error, RequestError | ConstraintLimit) else None
        ended = [active for active in self._requests if named in (None, active.state.id)]
        for active in ended or self._requests:
            self._roster.end(active, "error", cause_of(error))
        return True
