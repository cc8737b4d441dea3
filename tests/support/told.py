"""Texts that some threads tell others, as processes do through a store."""

from __future__ import annotations

import threading


class Told:
    """A store of texts, for threads in the place of processes."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = threading.Condition()

    def say(self, key: str, text: str) -> None:
        with self.changed:
            self.texts[key] = text
            self.changed.notify_all()

    def hear(self, key: str) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.texts, 10)
            return self.texts[key]
