"""Every test of this folder has caches of its own and no way to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for this test."""
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(directory))
    return directory
