"""Events of requests. Their policies learn from them at once; they are emitted when nothing waits for that."""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import Any

from spec_sdk.engine.turn import Active
from spec_sdk.errors import CallOf


class EventQueue:
    """Those that are to be emitted, in the order in which they were noted."""

    def __init__(self) -> None:
        self._untold: deque[tuple[Active, dict[str, Any]]] = deque()

    def note(self, active: Active, event: str, **fields: Any) -> None:
        """Let the request's policy learn from an event, which is to be emitted."""
        told = {"event": event, "request": active.state.id, **fields}
        with CallOf("policy", active.policy.name):
            active.policy.observe(MappingProxyType(told))
        self._untold.append((active, told))

    def end(self, active: Active, reason: str) -> None:
        """Note that the request has ended. Its policy learns nothing from that."""
        told = {"event": "request_end", "request": active.state.id, "finish_reason": reason}
        self._untold.append((active, told))

    def emit(self) -> None:
        """Emit what was noted since the last time; then raise the first error of what takes the events."""
        failed: BaseException | None = None
        while self._untold:
            active, event = self._untold.popleft()
            try:
                active.emit(event)
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed
