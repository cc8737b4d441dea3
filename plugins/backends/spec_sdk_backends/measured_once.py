"""What is timed once on a machine, and kept in the cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from spec_sdk.files import write_json
from spec_sdk.model.source_cache import cache_root, one_process
from spec_sdk_backends.native.library import LOCK_FILE

LONGEST_S = 120.0
"""How long another process is waited for that measures."""


def place_of(kind: str, what: str, facts: str) -> Path:
    """Where the figure called ``what`` is kept that hangs on ``facts``, among others of its kind."""
    return cache_root() / kind / f"{what}-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.json"


def measured_once(path: Path, known: Collection[int], measure: Callable[[], int], telling: str = "") -> int:
    """The figure at ``path`` if it is one of those that are ``known``; else what ``measure`` returns, which is kept.

    ``telling``: what is told of on stderr, "… once on this machine", before it is measured. The same for all processes
    that share a cache directory: what is kept first counts, so that ranks that measure at once compute alike.
    """
    if (kept := _kept(path, known)) is not None:
        return kept
    # what is timed beside another process that does the same would say little; and ranks are to compute alike
    with one_process(cache_root() / LOCK_FILE, longest_s=LONGEST_S):
        if (kept := _kept(path, known)) is not None:
            return kept
        if telling:
            print(f"{telling}, once on this machine", file=sys.stderr)
        found = measure()
        # of one that was not waited for any longer
        if (kept := _kept(path, known)) is not None:
            return kept
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, found)
        return found


def _kept(path: Path, known: Collection[int]) -> int | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        kept = int(json.loads(path.read_text(encoding="utf-8")))
        return kept if kept in known else None
    return None
