"""What the tests of draft heads share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random target on disk."""
    directory = tmp_path_factory.mktemp("models") / "target"
    write_checkpoint(directory, "smollm", 3)
    return directory
