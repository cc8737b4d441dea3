"""Native kernels with Intel's AMX, or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spec_sdk_backends.native.library import library, use_amx, uses_amx


@contextmanager
def amx(wanted: bool) -> Iterator[None]:
    """Products use AMX, or do not; skips where they cannot."""
    before = uses_amx()
    if use_amx(library(), wanted) != wanted:
        pytest.skip("no AMX here: of the processor, of the compiler, or lent by the system")
    try:
        yield
    finally:
        use_amx(library(), before)
