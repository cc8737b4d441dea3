"""A server of a tiny model, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from spec_sdk import Engine
from tests.support.serving import PATIENCE_S, Served, served
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


@pytest.fixture(scope="session")
def server(engine: Engine) -> Iterator[Served]:
    with served(engine) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0) as made:
        yield made
