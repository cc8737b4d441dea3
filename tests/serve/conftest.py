"""A server of a tiny model, for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest

from spec_sdk import Engine
from tests.support.scripted_answers import Scripted, scripted_server
from tests.support.scripted_answers import scripted_engine as make_scripted_engine
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


@pytest.fixture(scope="session")
def scripted_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return make_scripted_engine(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="session")
def scripted_servers(scripted_engine: Engine) -> Iterator[dict[str, tuple[Served, openai.OpenAI]]]:
    """By ``task.reasoning``."""
    with scripted_server(scripted_engine) as auto, scripted_server(scripted_engine, "none") as none:
        yield {"auto": auto, "none": none}


@pytest.fixture
def scripted(
    scripted_servers: dict[str, tuple[Served, openai.OpenAI]], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Scripted]:
    """``scripted(template, text, reasoning="auto")``: a server that answers so."""

    def begin(template: str, text: str, reasoning: str = "auto") -> Scripted:
        return Scripted(*scripted_servers[reasoning], monkeypatch).begin(template, text)

    return begin
