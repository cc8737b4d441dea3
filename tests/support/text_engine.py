"""Fixtures of a tiny model of texts and an engine on it, for folders that import them in their conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_sdk import Engine
from tests.support.text_checkpoints import write_text_checkpoint

OVERRIDES = ["max_new_tokens=12", "ignore_eos=true", "sampling.repetition_penalty=1.3"]
"""A penalty keeps the random model from repeating itself."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_text_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def engine(checkpoint: Path) -> Engine:
    """Trees of a draft model: a step gives several tokens."""
    return Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=OVERRIDES)
