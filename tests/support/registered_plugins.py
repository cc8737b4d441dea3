"""Plugins that a test registers are gone after it."""

from __future__ import annotations

import pytest

from spec_sdk import registered
from spec_sdk.registry import Registry


@pytest.fixture
def no_plugin_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of this process must not find what a test registers."""
    registry = Registry.discover()
    monkeypatch.setattr(registry, "_offers", dict(registry._offers))
    monkeypatch.setattr(registered, "_names", set())
