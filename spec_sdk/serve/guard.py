"""What every request passes before it reaches the server's own code: who may ask, how much, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spec_sdk.say import say
from spec_sdk.serve.answering import ClientLeft, shut_down, tell_of, unless
from spec_sdk.serve.counts import Counts
from spec_sdk.serve.faults import Refusal, unsound
from spec_sdk.serve.page import FILES

OPEN = ("/health", *FILES)
"""What needs no key."""
ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics", "/openapi.json", "/")
MOST_DROPPED = 16
"""Times the largest body that is taken: so much of a larger one is read, and thrown away, behind its refusal."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """``hosts``: what the header Host may name, none for anything. ``keys``: of which one is asked for, if any."""

    max_body: int
    read_timeout: float
    hosts: Sequence[str] = ()
    keys: Sequence[str] = ()
    access_log: bool = True


class Guard:
    """Checks key, host and size; hands on the whole body at once; keeps exceptions from client and log. ``ending``: set
    when no more body is to be waited for.
    """

    def __init__(self, app: ASGIApp, limits: Limits, counts: Counts, ending: asyncio.Event) -> None:
        self._app = app
        self._limits = limits
        self._counts = counts
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def refuse(refusal: Refusal) -> None:
            if not status:
                answered = self._and_then_the_rest(receive, watched) if refusal.status == 413 else watched
                await refusal.response()(scope, receive, answered)

        try:
            self._check(scope)
            body = await unless(self._body(scope, receive), shut_down(self._ending))
            await self._app(scope, _replayed(body, receive), watched)
        except Refusal as refusal:
            await refuse(refusal)
        except ClientLeft:
            self._counts.cancelled.inc()
            # starlette answers 500 to whoever has left, before the exception comes here
            status = status if status == 200 else 499
        except Exception as error:
            tell_of(error)
            await refuse(unsound())
        finally:
            endpoint = next((name for name in ENDPOINTS if scope["path"] == name), "other")
            self._counts.requests.labels(endpoint, str(status or 499)).inc()
            if self._limits.access_log:
                client = (scope.get("client") or ["-"])[0]
                # paths that are none of ours may hold anything
                line = f"{client} {scope['method']} {endpoint} {status or 499} {time.monotonic() - began:.3f} s"
                say(line)

    def _and_then_the_rest(self, receive: Receive, send: Send) -> Send:
        """Sends an answer, and ends it when the rest of a body that is too large has come, or enough of it.

        Closed before that, the connection is reset, and the client never sees why.
        """

        async def send_first(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)
            if message["type"] == "http.response.body":
                await self._drop_the_rest(receive)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        return send_first

    async def _drop_the_rest(self, receive: Receive) -> None:
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.read_timeout):
                while dropped < MOST_DROPPED * self._limits.max_body:
                    message = await receive()
                    dropped += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._limits.hosts and _without_port(host) not in self._limits.hosts:
            # a page in a browser here may have led its own name to this machine
            raise Refusal(403, "Host: this server answers to the names of this machine only")
        if self._limits.keys and scope["path"] not in OPEN:
            given = headers.get(b"authorization", b"")
            kind, _, key = given.partition(b" ")
            known = [hmac.compare_digest(key.strip(), one.encode()) for one in self._limits.keys]
            if kind.lower() != b"bearer" or not any(known):
                headers_401 = {"WWW-Authenticate": "Bearer"}
                raise Refusal(401, "Authorization: no valid API key", code="invalid_api_key", headers=headers_401)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. Raises Refusal for one that is too large or comes too slowly."""
        most = self._limits.max_body
        too_large = Refusal(413, f"the body has more than {most} bytes", headers={"Connection": "close"})
        length = dict(scope["headers"]).get(b"content-length", b"")
        # the longest number that can be read is no attack on int()
        if len(length) > 18 or (length.isdigit() and int(length) > most):
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.read_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            message_408 = f"the body did not come within {self._limits.read_timeout:g} s"
            raise Refusal(408, message_408, headers={"Connection": "close"}) from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, and then what comes after it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
