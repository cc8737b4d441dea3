"""One case: a command line run in a forked process with limits, and what is wrong with what it did."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from spec_sdk import app

STATUSES = (0, 2)
"""Exit statuses of a command line that was understood, or refused."""
CPU_SECONDS, STILL_SECONDS = 40, 60
"""How much of the processor a case may use, and how long it may wait for anything without using it."""
MEMORY = 3 << 30
"""Bytes of address space above those that the process has when it begins."""
LARGEST_FILE = 256 << 20
NOBODY = 65534
MODULES = "modules"
HALF_FILES = (".partial", ".tmp", ".partial-", ".compiling-")


@dataclass(frozen=True)
class Place:
    """The directories of a case: where it runs, what it is given, its home. The cache outlives it."""

    root: Path
    cache: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def given(self) -> Path:
        return self.root / "given"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def clear(self) -> None:
        """Empty directories, whatever permissions the last case took from them."""
        _make_removable(self.root)
        shutil.rmtree(self.root, ignore_errors=True)
        for directory in (self.work, self.given, self.home):
            directory.mkdir(parents=True)
            directory.chmod(0o777)


@dataclass(frozen=True)
class Outcome:
    """What a command line did. ``status`` is negative for a signal."""

    status: int
    seconds: float
    output: str
    timed_out: bool


def run(arguments: Sequence[str], place: Place, warming: bool = False) -> Outcome:
    """Run a command line in a fork of this process, in ``place``, with nothing on stdin.

    ``warming``: without limits, and the names of all modules that it has in the end are written to ``MODULES``.
    """
    log = place.root / "output"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(arguments, place, log, warming)
    timed_out, used, moved = False, 0, began
    while True:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            break
        now, ticks = time.monotonic(), _ticks(child)
        if ticks != used:
            used, moved = ticks, now
        if not warming and now - moved > STILL_SECONDS and not timed_out:
            timed_out = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(code)
    output = log.read_bytes()[:1_000_000].decode("utf-8", "replace")
    return Outcome(status, time.monotonic() - began, output, timed_out or status in (-signal.SIGXCPU, -signal.SIGKILL))


def _child(arguments: Sequence[str], place: Place, log: Path, warming: bool) -> None:
    """Become the case's process; never returns."""
    status = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(place.work)
        os.environ |= {"HOME": str(place.home), "SPEC_SDK_CACHE": str(place.cache), "HF_HOME": str(place.home / "hf")}
        if os.geteuid() == 0 and not warming:
            # nobody's: what may not be read or written must be so for the case too
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        if not warming:
            _limit(resource.RLIMIT_CPU, CPU_SECONDS)
            _limit(resource.RLIMIT_FSIZE, LARGEST_FILE)
            _limit(resource.RLIMIT_AS, _address_space() + MEMORY)
        sys.argv = ["spec-sdk", *arguments]
        status = app.main(list(arguments))
        if warming:
            # modules made on the spot, such as those of six, have no file to be imported from
            names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None) is not None]
            (place.root / MODULES).write_text("\n".join(sorted(names)))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if 0 <= status < 256 else 70)


def _ticks(process: int) -> int:
    """Processor time that a child has used, in the system's unit."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _limit(kind: int, amount: int) -> None:
    resource.setrlimit(kind, (amount, amount))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def faults(outcome: Outcome, place: Place) -> list[str]:
    """All that is wrong: none of a case that passed."""
    found = []
    if "Traceback" in outcome.output:
        found.append("traceback")
    if outcome.timed_out:
        found.append("over its limit of time")
    elif outcome.status not in STATUSES:
        found.append(f"status {outcome.status}")
    errors = [line for line in outcome.output.splitlines() if line.startswith("error: ")]
    if outcome.status == 2 and len(errors) != 1:
        found.append(f"{len(errors)} lines of error")
    for top in (place.work, place.home, place.cache):
        found += [f"left {path.name}" for path in _files(top) if any(part in path.name for part in HALF_FILES)]
    found += [f"unreadable {path.name}" for path in _files(place.work) if not _readable(path)]
    return found


def _files(top: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(top):
        yield from (Path(directory) / name for name in (*directories, *files))


def _readable(path: Path) -> bool:
    """Whether a result is whole; anything but JSON, JSON lines and YAML is not looked into."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        elif path.suffix == ".jsonl":
            for line in path.read_text(encoding="utf-8").splitlines():
                json.loads(line, parse_constant=_no_number)
        elif path.suffix == ".yaml":
            yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError):
        return False
    return True


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _make_removable(top: Path) -> None:
    for directory, directories, _ in os.walk(top):
        for name in directories:
            path = Path(directory) / name
            if not path.is_symlink():
                path.chmod(0o755)
