"""A server from its socket to its last answer."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import signal
import socket
import time
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import expanded, read_text
from spec_sdk.say import say
from spec_sdk.serve.heads import protocol_within
from spec_sdk.serve.options import ServeConfig

LAST_BYTES_S = 5
"""How long clients have to read what is told to them when answers are ended."""


def bound(config: ServeConfig) -> socket.socket:
    """A socket at the server's address. Raises UserError if it is not to be had."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        place = socket.socket(family, kind, protocol)
        try:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(address)
        except BaseException:
            place.close()
            raise
    except UnicodeError as error:
        raise UserError(f"task.host: {config.host!r} is no address") from error
    except socket.gaierror as error:
        raise UserError(f"task.host: {config.host!r} is no address of this machine: {message_of(error)}") from error
    except OSError as error:
        reason = error.strerror or message_of(error)
        raise UserError(
            f"task.port: {config.host}:{config.port} cannot be listened on: {reason}; task.port=0 takes a free one"
        ) from error
    return place


def is_loopback(place: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(place.getsockname()[0]).is_loopback


def url_of(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def keys_of(config: ServeConfig) -> list[str]:
    """The keys that clients may send; none if none is asked for. Raises UserError for a file that has none."""
    if config.api_key_file is None:
        return []
    path: Path = expanded(config.api_key_file, "task.api_key_file")
    text = read_text(path, f"task.api_key_file: {config.api_key_file}")
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UserError(f"task.api_key_file: {config.api_key_file} has no key; write one in a line")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.isascii() or " " in line.strip():
            where = f"task.api_key_file: {config.api_key_file}: line {number}"
            raise UserError(f"{where} has more than ASCII without spaces")
    return keys


class Server(uvicorn.Server):
    """Says where it serves once it does, and that it waits for answers once it is told to end."""

    def __init__(self, config: uvicorn.Config, about: str, drain: float, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._about = about
        self._drain = drain
        self._ending = ending
        self._hurried = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            say(self._about)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        say("stopping: answers in progress end first")
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets=sockets)
        ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            # uvicorn would drop everything, and the clients with it
            self._hurried = True
        else:
            super().handle_exit(sig, frame)

    async def _end_answers(self) -> None:
        """End answers in progress, when their time is up or a second Ctrl-C has come."""
        end = time.monotonic() + self._drain
        while time.monotonic() < end and not self._hurried:
            await asyncio.sleep(0.1)
        say("stopping: answers in progress are ended now")
        self._ending.set()
        # whoever does not read its last bytes is dropped, which is no error
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def make_server(app: ASGIApp, config: ServeConfig, about: str, ending: asyncio.Event) -> Server:
    """A server of an application, which ends its answers once ``ending`` is set; ``about`` is told when it serves."""
    settings = uvicorn.Config(
        app,
        http=protocol_within(config.read_timeout),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(config.drain_timeout) + LAST_BYTES_S,
        ws="none",
        lifespan="off",
    )
    return Server(settings, about, config.drain_timeout, ending)


def run_server(server: Server, place: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, and then until answers in progress have ended; a second Ctrl-C ends them at once.

    Whatever handles signals otherwise is handed the signal afterwards, as if it had come then.
    """
    with place:
        asyncio.run(server.serve(sockets=[place]))
