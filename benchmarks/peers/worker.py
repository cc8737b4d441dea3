"""A peer's process: started, asked, and stopped while it is not its turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

REPOSITORY = Path(__file__).parents[2]
THREAD_SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GGML_", "TORCH_NUM_")
"""How environment variables begin that say how a program's threads work: no worker is given any."""


class NotAvailable(Exception):
    """A peer that did not start, and why in one line."""


@dataclass(frozen=True)
class Timing:
    """One answer. ``first_s``: until the first tokens were there, ``first_tokens`` of them; ``total_s``: all of it."""

    tokens: list[int]
    first_s: float
    first_tokens: int
    total_s: float

    @property
    def decode_s(self) -> float:
        return self.total_s - self.first_s

    @property
    def decoded(self) -> int:
        """Tokens that came after the first ones."""
        return len(self.tokens) - self.first_tokens


class Worker:
    """A process that answers one request at a time. Between requests all of its threads are stopped (SIGSTOP), so that
    threads which wait by spinning take nothing from the others.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it and wait until it has loaded its model. Raises NotAvailable."""
        with contextlib.ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile(mode="w+", encoding="utf-8"))
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    env={**without_thread_settings(os.environ), **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    text=True,
                    encoding="utf-8",
                )
            except OSError as error:
                raise NotAvailable(f"{command[0]}: {error.strerror}") from error
            stack.callback(self._end)
            self.facts: dict[str, Any] = self._reply()["ready"]
            self._process.send_signal(signal.SIGSTOP)
            self._stack = stack.pop_all()

    def ask(self, prompt: Sequence[int], new_tokens: int) -> Timing:
        """Answer ``prompt`` (token ids). Raises NotAvailable if the process ends."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"tokens": list(prompt), "new_tokens": new_tokens}) + "\n")
            self._process.stdin.flush()
            reply = self._reply()
        except BrokenPipeError as error:
            raise NotAvailable(self._last_words()) from error
        self._process.send_signal(signal.SIGSTOP)
        arrivals = reply["arrivals"]
        return Timing(reply["tokens"], *arrivals[0], arrivals[-1][0])

    def resident_bytes(self) -> int:
        """Memory that its process holds."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def close(self) -> None:
        """End the process."""
        self._stack.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotAvailable(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"ended with status {self._process.returncode}"


def without_thread_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what says how threads work."""
    return {name: value for name, value in environment.items() if not name.startswith(THREAD_SETTINGS)}
