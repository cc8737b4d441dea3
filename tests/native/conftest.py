"""What the tests of native kernels share: they are skipped where nothing makes them."""

from __future__ import annotations

import pytest

from spec_sdk_backends.native.library import find


@pytest.fixture(autouse=True, scope="session")
def _kernels() -> None:
    found = find()
    if isinstance(found, str):
        pytest.skip(f"no native kernels: {found}")
