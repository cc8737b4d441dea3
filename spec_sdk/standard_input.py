"""What was piped or redirected into standard input, and how long to wait for it.

A terminal, a closed descriptor and a device such as /dev/null bring nothing; a file is there already. A pipe (or a
socket) may be slow, or one that was inherited from a program that never writes to it, and the pipe itself does not
tell. What tells is who holds its other end: a neighbour in the shell's pipeline is there to write, an ancestor that
started us (a CI runner, sshd) may not be.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from spec_sdk.errors import UserError

NOTICE_S = 1.0
"""Seconds of silence after which a line says what is waited for."""
PATIENCE_S = 10.0
"""Seconds for which a pipe is waited for whose writer is not known to belong to the pipeline."""
WRITABLE = 0o200


@functools.cache
def whole_text() -> str:
    """All of standard input, read once: every job of a sweep gets the same. Raises UserError if it is no UTF-8."""
    try:
        text = sys.stdin.read()
        # where the locale says nothing, bytes that are no text come as surrogates
        text.encode("utf-8", "surrogateescape").decode("utf-8")
        return text.rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"prompt: standard input is no UTF-8 text (byte {error.start})") from error


@functools.cache
def piped_text() -> str | None:
    """What was piped or redirected into standard input; None if nothing was."""
    kind = _kind(sys.stdin)
    if kind == "file":
        return whole_text()
    # a pipe that was closed unwritten is how many programs start us
    return whole_text() or None if kind == "pipe" and _has_something(sys.stdin) else None


def _kind(stream: TextIO | None) -> str:
    try:
        mode = os.fstat(stream.fileno()).st_mode if stream is not None else 0
    except (OSError, ValueError):  # closed, or replaced by something without a descriptor
        return "none"
    return "file" if stat.S_ISREG(mode) else "pipe" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "none"


def _has_something(stream: TextIO) -> bool:
    """Wait for the first byte of a pipe, or its end: as long as a neighbour may write, else for a while."""
    if _readable(stream, NOTICE_S):
        return True
    print("waiting for a prompt on standard input (prompt=TEXT or </dev/null: without one)", file=sys.stderr)
    while not _readable(stream, PATIENCE_S - NOTICE_S):
        # a neighbour may have written and ended while it was looked for
        if not _neighbour_writes(stream.fileno()) and not _readable(stream, 0):
            print(
                "standard input is a pipe that nothing came through: going on with the default prompt (prompt=- waits "
                "on)",
                file=sys.stderr,
            )
            return False
    return True


def _readable(stream: TextIO, seconds: float) -> bool:
    return bool(select.select([stream], [], [], seconds)[0])


def _neighbour_writes(descriptor: int) -> bool:
    """Whether a process that is neither this one nor an ancestor holds the pipe's other end. False where it cannot be
    seen: without /proc, of another user, in another container, of a socket."""
    pipe = os.fstat(descriptor)
    own = {str(os.getpid()), *_ancestors()}
    return any(
        process not in own and (end.st_dev, end.st_ino) == (pipe.st_dev, pipe.st_ino)
        for process, end in _open_for_writing()
    )


def _open_for_writing() -> Iterator[tuple[str, os.stat_result]]:
    """Every process that may be looked into, and what it has open for writing."""
    for directory in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for link in list(directory.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    # the mode of the link itself says what the descriptor is open for
                    if link.lstat().st_mode & WRITABLE:
                        yield directory.parent.name, link.stat()


def _ancestors() -> Iterator[str]:
    process = str(os.getppid())
    while process != "0":
        yield process
        try:
            # the name in parentheses may have spaces and parentheses itself
            process = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return
