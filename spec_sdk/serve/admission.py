"""How many answers the server takes on: those that are worked on, and a queue that is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spec_sdk.counted import counted
from spec_sdk.serve.faults import Refusal

RETRY_AFTER_S = 1


class Admission:
    """Counts answers from when they are admitted until their client has them: a slow reader keeps its place.

    ``slots``: answers that the engine works on at once; ``queue``: that may wait besides.
    """

    def __init__(self, slots: int, queue: int) -> None:
        self.slots = slots
        self.places = slots + queue
        self.taken = 0

    @contextmanager
    def admitted(self, answers: int, option: str) -> Iterator[None]:
        """Room for so many answers, which ``option`` asks for. Raises Refusal: status 400 if there can be none, 429 if
        there is none now.
        """
        if answers > self.places:
            message = f"{option}: {answers} answers are asked for, and this server takes on {self.places} at most"
            raise Refusal(400, message, option)
        if self.taken + answers > self.places:
            taken = counted(self.taken, "answer")
            message = f"the server has {taken} in progress or waiting and takes {self.places}; try again"
            raise Refusal(429, message, code="queue_full", headers={"Retry-After": str(RETRY_AFTER_S)})
        self.taken += answers
        try:
            yield
        finally:
            self.taken -= answers
