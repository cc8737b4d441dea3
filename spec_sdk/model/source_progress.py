"""What a long preparation tells the user, always on stderr: a bar on a terminal, else one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spec_sdk.say import say


def interactive() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def byte_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of ``total`` bytes is done; yields what to call with the bytes of each step."""
    if not interactive():
        say(f"{label} ({gigabytes(total)})")
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda step: progress.advance(task, step)


def gigabytes(size: int) -> str:
    """A size in bytes for people: 0.54 GB."""
    return f"{size / 1e9:.2f} GB" if size >= 5e6 else f"{size / 1e6:.2f} MB"
