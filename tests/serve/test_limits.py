"""What the server bounds, whom it lets in, and what becomes of requests whose client leaves."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from spec_sdk import Engine
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.turn import Progress
from spec_sdk.serve.options import ServeConfig
from tests.support.serving import PATIENCE_S, Served, get, post, served

LONG = {"prompt": "Why is the sky blue?", "max_tokens": 3000, "stream": True}
"""More tokens than anybody waits for."""


STEP = Scheduler.step


def slower(scheduler: Scheduler) -> list[Progress]:
    time.sleep(0.005)
    return STEP(scheduler)


@pytest.fixture
def narrow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """One answer at once, one that waits, little bodies. Steps leave others time: :data:`LONG` takes a quarter of a
    minute wherever nobody ends it.
    """
    monkeypatch.setattr(Scheduler, "step", slower)
    config = ServeConfig(port=0, max_num_seqs=1, max_queue=1, max_body=2000, access_log=False)
    with served(engine, config) as running:
        yield running


def begun(port: int, body: dict[str, Any] = LONG) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream whose first chunk was read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline().startswith(b"data: ")
    return connection, response


def left(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
    response.close()
    connection.close()


def test_a_full_queue_is_told_with_429(narrow: Served) -> None:
    body = json.dumps({"prompt": "Hi", "max_tokens": 4}).encode()
    first = begun(narrow.port)
    second = threading.Thread(target=post, args=(narrow.port, "/v1/completions", body))
    second.start()
    narrow.wait_for("requests_waiting", 1)
    for stream in (True, False):
        asked = json.dumps({"prompt": "Hi", "stream": stream}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", narrow.port, timeout=PATIENCE_S)
        with closing(connection):
            connection.request("POST", "/v1/completions", asked, {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 429 and response.headers["Retry-After"] == "1"
            assert json.loads(response.read())["error"]["code"] == "queue_full"
    assert narrow.metric("requests_running") == 1
    left(*first)
    # the one that waited is served when the first one's client has left
    second.join(PATIENCE_S)
    assert not second.is_alive()
    # a request is counted after its last byte was sent
    narrow.wait_for("requests_total", 2, endpoint="/v1/completions", status="200")
    narrow.wait_for("cancelled_requests_total", 1)
    assert post(narrow.port, "/v1/completions", body)[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(stream: bool, narrow: Served) -> None:
    body = json.dumps({**LONG, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", narrow.port), timeout=PATIENCE_S) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        narrow.wait_for("requests_running", 1)
    narrow.wait_for("cancelled_requests_total", 1)
    narrow.wait_for("requests_running", 0)
    if not stream:
        # no fault of the server's, which an alarm on status 500 would take it for
        narrow.wait_for("requests_total", 1, endpoint="/v1/completions", status="499")
    assert narrow.metric("requests_total", endpoint="/v1/completions", status="500") == 0
    assert not narrow.service.engine.pipeline.engine.busy or narrow.metric("generation_tokens_total") < 3000
    status, reply = post(narrow.port, "/v1/completions", b'{"prompt":"Hi","max_tokens":3}')
    assert status == 200 and json.loads(reply)["usage"]["completion_tokens"] == 3


def test_a_client_that_leaves_while_it_waits(narrow: Served) -> None:
    first = begun(narrow.port)
    with socket.create_connection(("127.0.0.1", narrow.port), timeout=PATIENCE_S) as client:
        body = json.dumps(LONG).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        narrow.wait_for("requests_waiting", 1)
    narrow.wait_for("requests_waiting", 0)
    assert narrow.metric("requests_running") == 1
    left(*first)
    narrow.wait_for("cancelled_requests_total", 2)


def test_a_request_that_takes_too_long_is_cut_off(engine: Engine) -> None:
    with served(engine, ServeConfig(port=0, timeout=0.05, access_log=False)) as running:
        status, reply = post(running.port, "/v1/completions", json.dumps({**LONG, "stream": False}).encode())
        assert status == 504 and json.loads(reply)["error"]["code"] == "timeout"
        running.wait_for("requests_running", 0)
        assert running.metric("generation_tokens_total") < 6000


def error_of(response: http.client.HTTPResponse) -> Any:
    """What a stream that has begun ends with."""
    *_, last, nothing = response.read().decode().split("\n\n")
    assert nothing == ""
    return json.loads(last.removeprefix("data: "))["error"]


def test_a_stream_that_takes_too_long_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "step", slower)
    with served(engine, ServeConfig(port=0, timeout=1, access_log=False)) as running:
        _, response = begun(running.port)
        error = error_of(response)
        assert error["code"] == "timeout" and error["message"] == "the answer was not there within 1 s"
        running.wait_for("requests_running", 0)


def test_answers_that_do_not_end_in_time_end_with_an_error(
    engine: Engine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "step", slower)
    replies: list[tuple[int, bytes]] = []
    with served(engine, ServeConfig(port=0, drain_timeout=0.2, access_log=False)) as running:
        body = json.dumps({**LONG, "stream": False}).encode()
        plain = threading.Thread(target=lambda: replies.append(post(running.port, "/v1/completions", body)))
        plain.start()
        running.wait_for("requests_running", 1)
        _, response = begun(running.port)
        unsent = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
        unsent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    plain.join(PATIENCE_S)
    [(status, reply)] = replies
    assert status == 503 and json.loads(reply)["error"]["type"] == "server_error"
    assert json.loads(reply)["error"]["code"] == error_of(response)["code"] == "shutting_down"
    with unsent:
        assert unsent.recv(100).startswith(b"HTTP/1.1 503")
    told = capfd.readouterr().err.splitlines()
    assert told[-2:] == ["stopping: answers in progress end first", "stopping: answers in progress are ended now"]


def test_bodies_are_bounded(narrow: Served) -> None:
    status, reply = post(narrow.port, "/v1/completions", json.dumps({"prompt": "a" * 3000}).encode())
    assert status == 413 and "2000 bytes" in json.loads(reply)["error"]["message"]
    with socket.create_connection(("127.0.0.1", narrow.port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"800\r\n" + b"a" * 2048 + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    assert post(narrow.port, "/v1/completions", b'{"prompt":"Hi","max_tokens":3}')[0] == 200


def test_whoever_sends_a_large_body_at_once_reads_why_it_is_refused(engine: Engine) -> None:
    """A client that sends all of it before it reads: closed meanwhile, the connection would be reset."""
    with served(engine, ServeConfig(port=0, max_body=2**20, access_log=False)) as running:
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_S)
            with closing(connection):
                connection.request("POST", "/v1/completions", b"a" * 8 * 2**20, {"Content-Type": "application/json"})
                response = connection.getresponse()
                assert response.status == 413 and f"{2**20} bytes".encode() in response.read()


def test_no_more_than_enough_of_a_large_body_is_read(narrow: Served) -> None:
    with socket.create_connection(("127.0.0.1", narrow.port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413")
        with pytest.raises(ConnectionError):
            for _ in range(10_000):
                client.sendall(b"a" * 2000)


def test_a_body_that_does_not_come(engine: Engine) -> None:
    with served(engine, ServeConfig(port=0, read_timeout=0.2, access_log=False)) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
            assert client.recv(100).startswith(b"HTTP/1.1 408")
        assert get(running.port, "/health")[0] == 200


def test_a_head_that_does_not_come(engine: Engine) -> None:
    """The first on a connection, a later one, or none at all."""
    body = b'{"prompt":"Hi","max_tokens":3}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with served(engine, ServeConfig(port=0, read_timeout=0.5, access_log=False)) as running:
        for before in (b"", head + b"Content-Length: %d\r\n\r\n" % len(body) + body):
            with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S) as client:
                received = b""
                client.sendall(before)
                while before and b'"usage"' not in received:
                    received += client.recv(10_000)
                for byte in head[:5]:
                    client.sendall(bytes([byte]))
                    time.sleep(0.02)
                received = b""
                while part := client.recv(10_000):
                    received += part
                assert received.startswith(b"HTTP/1.1 408") and b"did not come within 0.5 s" in received
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S) as client:
            assert client.recv(100) == b""


def test_keys(engine: Engine) -> None:
    with served(engine, keys=("first", "second")) as running:
        assert get(running.port, "/health")[0] == 200
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            for wrong in ({}, {"Authorization": "Bearer third"}, {"Authorization": "first"}, {"Authorization": ""}):
                status, reply = get(running.port, path, **wrong)
                assert status == 401 and json.loads(reply)["error"]["code"] == "invalid_api_key"
            for key in ("first", "second"):
                assert get(running.port, path, Authorization=f"Bearer {key}")[0] == 200


def test_pages_of_other_names_are_kept_out(server: Served) -> None:
    """A browser on this machine may be led here by a name that is somebody else's."""
    for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example"):
        assert get(server.port, "/v1/models", Host=host)[0] == 403
    for host in ("localhost", f"LOCALHOST:{server.port}", "[::1]:80"):
        assert get(server.port, "/v1/models", Host=host)[0] == 200
    # what a page may send anywhere without being asked is no JSON
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    with closing(connection):
        connection.request("POST", "/v1/completions", b'{"prompt":"Hi"}', {"Content-Type": "text/plain"})
        assert connection.getresponse().status == 400


@pytest.mark.parametrize("shown", [False, True])
def test_prompts_are_logged_only_if_asked_for(
    shown: bool, engine: Engine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "Zanzibar"
    with served(engine, ServeConfig(port=0, log_prompts=shown)) as running:
        assert post(running.port, "/v1/completions", json.dumps({"prompt": secret}).encode())[0] == 200
        assert post(running.port, "/v1/completions", json.dumps({"prompt": secret, secret: 1}).encode())[0] == 400
        assert get(running.port, f"/{secret}?q={secret}")[0] == 404

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"over {secret}")

        monkeypatch.setattr("spec_sdk.serve.app.asked_of", broken)
        status, reply = post(running.port, "/v1/completions", json.dumps({"prompt": secret}).encode())
        assert status == 500 and b"Traceback" not in reply and secret.encode() not in reply
        monkeypatch.undo()
    logged = capfd.readouterr().err
    assert "127.0.0.1 POST /v1/completions 200" in logged and "RuntimeError" in logged
    assert (secret in logged) == shown


def test_an_answer_that_fails_is_told_of_without_a_traceback(
    engine: Engine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "over a secret"

    def broken(*_: Any) -> Any:
        raise RuntimeError(message)

    with served(engine) as running:
        with monkeypatch.context() as patch:
            patch.setattr(engine.pipeline.engine.target, "score", broken)
            for stream in (False, True):
                body = json.dumps({"prompt": "Hi", "stream": stream}).encode()
                status, reply = post(running.port, "/v1/completions", body)
                assert status == 500 and json.loads(reply)["error"]["type"] == "server_error"
        assert post(running.port, "/v1/completions", b'{"prompt":"Hi"}')[0] == 200
    logged = capfd.readouterr().err
    assert "RuntimeError" in logged and message not in logged
