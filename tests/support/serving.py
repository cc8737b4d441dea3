"""A server in a thread of this process, on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spec_sdk import Engine
from spec_sdk.serve.app import Service, make_app
from spec_sdk.serve.guard import LOOPBACK
from spec_sdk.serve.options import ServeConfig
from spec_sdk.serve.running import bound, make_server

PATIENCE_S = 120
"""How long anything may take that must come: as long as a machine may stall."""
MODEL = "tiny"


@dataclass(frozen=True)
class Served:
    """``url`` without ``/v1``."""

    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, metric: str, value: float, **labels: str) -> None:
        """Until a metric has this value. Raises AssertionError if it never does."""
        end = time.monotonic() + PATIENCE_S
        while self.metric(metric, **labels) != value:
            assert time.monotonic() < end, (metric, self.metric(metric, **labels), value)
            time.sleep(0.02)

    def metric(self, name: str, **labels: str) -> float:
        """0 where it was never counted."""
        return self.service.counts.registry.get_sample_value(f"spec_sdk_{name}", labels) or 0.0


@contextlib.contextmanager
def served(
    engine: Engine, config: ServeConfig | None = None, keys: Sequence[str] = (), length: int = 12
) -> Iterator[Served]:
    """A server of an engine; when it is left, answers in progress end first."""
    config = config or ServeConfig(port=0, access_log=False)
    place = bound(config)
    service = Service(engine, config, MODEL, length)
    server = make_server(make_app(service, LOOPBACK, keys), config, "serving", service.ending)
    # no signals come to a thread
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[place])))
    port = place.getsockname()[1]
    with place:
        thread.start()
        try:
            _until_it_answers(port, thread)
            yield Served(service, port)
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the server does not end"


def _until_it_answers(port: int, thread: threading.Thread) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        assert thread.is_alive() and time.monotonic() < end, "the server does not answer"
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                connection.close()
                return
        time.sleep(0.05)


def post(port: int, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Status and body of the response to a POST of JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.read()


def get(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of the response to a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
