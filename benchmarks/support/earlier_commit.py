"""An earlier commit of the project beside this tree, and processes of either."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> str:
    """What git says, here."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of git's with ``commit``, which is gone behind this."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "earlier"
        git("worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


@contextlib.contextmanager
def this_tree_and(commit: str | None) -> Iterator[dict[str, Path]]:
    """``now``: this tree; ``before``: :func:`checked_out`, if a commit is named."""
    with contextlib.ExitStack() as stack:
        before = {"before": stack.enter_context(checked_out(commit))} if commit else {}
        yield {"now": ROOT, **before}


def by_turns(trees: Mapping[str, Path], rounds: int, arguments: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """So many answers of each tree's processes (:func:`answer_of`), which take turns."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            answers[name].append(answer_of(tree, arguments))
    return answers


def answer_of(tree: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """What a Python process in ``tree``, which imports its packages and plugins, prints as its last line of JSON.

    Raises SystemExit, with the last line of its errors, where it fails.
    """
    paths = [tree, *sorted((tree / "plugins").iterdir())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {tree}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
