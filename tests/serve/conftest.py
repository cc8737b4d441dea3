"""A server of a tiny model, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from spec_sdk import Engine
from tests.support.serving import PATIENCE_S, Served, served
from tests.support.text_engine import checkpoint as checkpoint
from tests.support.text_engine import engine as engine


@pytest.fixture(scope="session")
def server(engine: Engine) -> Iterator[Served]:
    with served(engine) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0) as made:
        yield made
