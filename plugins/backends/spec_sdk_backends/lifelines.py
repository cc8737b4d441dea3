"""By which a rank sees that the process of another one has ended: an open connection between them, on which nothing is
said but goodbye.

Gloo tells whoever waits that a connection broke, but not always: a send that it begins while its peer dies is waited
for until the timeout (seen with torch 2.13 in 1 of 200 processes killed between two messages). The system closes a
connection of a process that ends, however it ends.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from datetime import timedelta
from typing import Any

from spec_sdk.errors import RankLost

_PORT, _SECRET = "spec_sdk/lifeline_port", "spec_sdk/lifeline_secret"
_SECRET_BYTES = 16
_GOODBYE = b"."
LONGEST_MEETING_S = 60.0
"""To connect to the leader, which has met all ranks just before."""
LONGEST_KNOCK_S = 5.0
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""A machine that lost its power closes nothing: the system asks it (seconds, seconds, times), where it can."""


class Lifelines:
    """Between the leader and each other rank. Every rank makes them at the same point.

    ``store``: torch.distributed's, that the ranks met at. Raises RankLost if a rank does not come.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._ends: list[socket.socket] = []
        try:
            if rank == 0:
                self._accept(store, size - 1)
            else:
                self._connect(store)
        except (OSError, RuntimeError) as error:
            self.close()
            raise RankLost(f"the processes of this run cannot reach each other ({error})") from error
        self._selector = selectors.DefaultSelector()
        for end in self._ends:
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._selector.register(end, selectors.EVENT_READ)

    def is_cut(self) -> bool:
        """Whether a process at the other end of one has ended without leaving, or gave up. Does not wait."""
        return not self._ends or any([self._has_ended(key.fileobj) for key, _ in self._selector.select(0)])

    def leave(self) -> None:
        """Close them after a run that is done here: others may not have noticed yet that it is."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.send(_GOODBYE)
        self.close()

    def close(self) -> None:
        """Let the others see that this rank gave up."""
        for end in self._ends:
            end.close()
        self._ends.clear()

    def _has_ended(self, end: Any) -> bool:
        try:
            said = end.recv(len(_GOODBYE))
        except OSError:
            return True
        if said:
            self._selector.unregister(end)
        return not said

    def _accept(self, store: Any, count: int) -> None:
        until = time.monotonic() + LONGEST_MEETING_S
        secret = secrets.token_hex(_SECRET_BYTES // 2).encode()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=max(count, 16)) as door:
            store.set(_SECRET, secret)
            store.set(_PORT, str(door.getsockname()[1]))
            while len(self._ends) < count:
                door.settimeout(max(0.01, until - time.monotonic()))
                end, _ = door.accept()
                # anything else on this network that knocks is sent away
                end.settimeout(LONGEST_KNOCK_S)
                with contextlib.suppress(OSError):
                    if end.recv(_SECRET_BYTES, socket.MSG_WAITALL) == secret:
                        self._ends.append(end)
                        continue
                end.close()

    def _connect(self, store: Any) -> None:
        store.wait([_PORT, _SECRET], timedelta(seconds=LONGEST_MEETING_S))
        address = _host(store), int(store.get(_PORT))
        end = socket.create_connection(address, timeout=LONGEST_MEETING_S)
        self._ends.append(end)
        end.sendall(store.get(_SECRET))


def _host(store: Any) -> str:
    """The leader's, as this rank reached it."""
    while not hasattr(store, "host"):
        store = store.underlying_store
    host: str = store.host
    return host
