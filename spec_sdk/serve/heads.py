"""Connections that are given up when a request's head does not come in time: uvicorn waits without limit."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from spec_sdk.serve.faults import Refusal, encoded


class HeadInTime(H11Protocol):
    """``head_timeout``: seconds in which a whole head must come, counted from the connection on, or from the first byte
    of a later head.
    """

    head_timeout: float
    _head: asyncio.TimerHandle | None = None

    # as uvicorn has it, whose transports can be written to
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._head is None and self.conn.trailing_data[0]:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._head = self.loop.call_later(self.head_timeout, self._give_up)

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        # who has sent nothing asks nothing
        if self.conn.trailing_data[0] and not self.transport.is_closing():
            refusal = Refusal(408, f"the head of the request did not come within {self.head_timeout:g} s")
            body = encoded(refusal.as_data()).encode()
            head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def protocol_within(seconds: float) -> type[HeadInTime]:
    """The protocol with this ``head_timeout``."""
    return type("HeadInTime", (HeadInTime,), {"head_timeout": seconds})
