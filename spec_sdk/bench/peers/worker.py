"""A peer's process: started, asked, and stopped while it is not its turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

import spec_sdk
from spec_sdk.bench.peers.serving import Request

THREAD_SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GGML_", "TORCH_NUM_")
"""How environment variables begin that say how a program's threads work: no worker is given any."""


class PeerError(Exception):
    """Why a peer gives no answer, in one line."""


class NotAvailable(PeerError):
    """A peer that did not start, or whose process ended."""


class NoAnswer(PeerError):
    """A request that a peer could not answer. It can be asked the next one."""


@dataclass(frozen=True)
class Timing:
    """One answer. ``first_s``: until the first tokens were there, ``first_tokens`` of them; ``total_s``: all of it.

    ``groups``: in how many groups the tokens came. ``peak_bytes``: the most memory that the process held meanwhile.
    """

    tokens: list[int]
    first_s: float
    first_tokens: int
    total_s: float
    groups: int = 0
    peak_bytes: int | None = None

    @property
    def decode_s(self) -> float:
        return self.total_s - self.first_s


class Worker:
    """A process that answers one request at a time. Between requests all of its threads are stopped (SIGSTOP), so that
    threads which wait by spinning take nothing from the others. It ends with this process, also if that is killed: on
    Linux at once, elsewhere when it is next to read a request.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None = None) -> None:
        """Start ``command`` in ``directory`` and wait until it has loaded its model. Raises NotAvailable."""
        with contextlib.ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile(mode="w+", encoding="utf-8"))
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=directory,
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

    def ask(self, request: Request) -> Timing:
        """The answer. Raises NoAnswer, and NotAvailable if the process ends."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(asdict(request)) + "\n")
            self._process.stdin.flush()
            reply = self._reply()
        except BrokenPipeError as error:
            raise NotAvailable(self._last_words()) from error
        self._process.send_signal(signal.SIGSTOP)
        if "error" in reply:
            raise NoAnswer(reply["error"])
        arrivals = reply["arrivals"]
        if not arrivals:
            raise NoAnswer("it made no token")
        first_s, first_tokens = arrivals[0]
        return Timing(
            reply["tokens"],
            first_s,
            first_tokens,
            arrivals[-1][0],
            groups=len(arrivals),
            peak_bytes=reply["peak_bytes"],
        )

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
        status = self._process.wait()
        if status < 0:
            return f"its process was ended by {signal.Signals(-status).name}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"its process ended with status {status}"


@contextlib.contextmanager
def peer_worker(command: Sequence[str]) -> Iterator[Worker]:
    """A worker of this package in the interpreter of another program. Raises NotAvailable.

    It finds spec_sdk there, and nothing else of what this interpreter has installed.
    """
    with tempfile.TemporaryDirectory(prefix="spec-sdk-peer-") as directory:
        alone = Path(directory) / "spec_sdk"
        alone.symlink_to(Path(spec_sdk.__file__).resolve().parent, target_is_directory=True)
        paths = [directory, *filter(None, [os.environ.get("PYTHONPATH")])]
        with Worker(command, {"PYTHONPATH": os.pathsep.join(paths)}, Path(directory)) as worker:
            yield worker


def without_thread_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what says how threads work."""
    return {name: value for name, value in environment.items() if not name.startswith(THREAD_SETTINGS)}
