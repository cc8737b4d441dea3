"""How far a benchmark is, and how long it will go on, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from spec_sdk.bench.records import Setting
from spec_sdk.counted import counted
from spec_sdk.duration import duration

LIVE_S, LINES_S = 0.2, 10.0
"""Seconds between two states of the line on a terminal, and between two lines elsewhere."""


class ProgressLines:
    """One line that is written over on a terminal; elsewhere a line every ten seconds, and the first at once."""

    def __init__(self, rounds: int, file: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._rounds = rounds
        self._file = file or sys.stderr
        self._now = now
        self._live = self._file.isatty()
        self._answers = self._done = 0
        self._began = self._shown = float("-inf")
        self._where = self._doing = ""
        self._open = False

    def begin(self, answers: int) -> None:
        self._answers, self._done, self._began = answers, 0, self._now()
        self.say(f"{counted(answers, 'answer')} to make" if answers else "all answers are there")

    def at(self, setting: Setting, round: int, prompt: str) -> None:
        which = f"temperature {setting.temperature:g}, batch size {setting.batch_size}"
        of = f", round {round + 1} of {self._rounds}" if self._rounds > 1 else ""
        self._where = f"{which}{of}, prompt {prompt}"

    def answered(self, candidate: str, answers: int) -> None:
        self._done += answers
        self._doing = candidate
        last = self._done >= self._answers
        if last or self._now() - self._shown >= (LIVE_S if self._live else LINES_S):
            self._shown = self._now()
            self._write(self.line())
        if last:
            self.close()

    def line(self) -> str:
        """Where it is, and how long the rest will take at the rate so far."""
        left = ""
        if 0 < self._done < self._answers:
            seconds = (self._now() - self._began) / self._done * (self._answers - self._done)
            left = f", about {duration(seconds)} left"
        return f"{self._done} of {self._answers} answers: {self._where}, {self._doing}{left}"

    def say(self, line: str) -> None:
        """A line of its own, which stays."""
        self.close()
        print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Leave the line that is written over."""
        if self._open:
            print(file=self._file, flush=True)
            self._open = False

    def _write(self, line: str) -> None:
        if self._live:
            print(f"\r\x1b[K{line}", end="", file=self._file, flush=True)
            self._open = True
        else:
            print(line, file=self._file, flush=True)
