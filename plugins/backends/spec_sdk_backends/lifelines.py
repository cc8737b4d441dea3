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
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from spec_sdk.cli.jobs import EXIT_LOST, status_of
from spec_sdk.errors import EndedElsewhere, RankLost

_PORT, _SECRET = "spec_sdk/lifeline_port", "spec_sdk/lifeline_secret"
_SECRET_BYTES, _RANK_BYTES = 16, 4
_GOODBYE, _ALL_HERE = b".", b"+"
LONGEST_MEETING_S = 60.0
"""To connect to the leader, where all ranks have met just before."""
LONGEST_KNOCK_S = 5.0
POLL_S = 0.5
"""How often a leader that waits looks who is there."""
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""A machine that lost its power closes nothing: the system asks it (seconds, seconds, times), where it can."""


class Lifelines:
    """Between the leader and each other rank. Every rank makes them at the same point.

    ``store``: torch.distributed's, that the ranks meet at. ``waiting``: what the leader calls every now and then while
    it waits, with the ranks that are there. ``longest_s``: how long they wait for one another. Raises RankLost if a
    rank does not come, or ends meanwhile, and what ``waiting`` raises.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        waiting: Callable[[Collection[int]], None] = lambda here: None,
        longest_s: float = LONGEST_MEETING_S,
    ) -> None:
        self._ends: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        try:
            if rank == 0:
                self._accept(store, size - 1, waiting, longest_s)
            else:
                self._connect(store, rank, longest_s)
        except (OSError, RuntimeError) as error:
            self._give_up(rank, EXIT_LOST)
            raise RankLost(f"the processes of this run cannot reach each other ({error})") from error
        except BaseException as error:
            self._give_up(rank, status_of(error))
            raise

    def _give_up(self, rank: int, status: int) -> None:
        """Close them. Those who wait for the leader are told its status, and need not say why."""
        for end in self._ends if rank == 0 else ():
            with contextlib.suppress(OSError):
                end.send(str(status).encode())
        self.close()

    def _keep(self, end: socket.socket) -> None:
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._ends.append(end)
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

    def _accept(self, store: Any, count: int, waiting: Callable[[Collection[int]], None], longest_s: float) -> None:
        until, here = time.monotonic() + longest_s, set[int]()
        secret = secrets.token_hex(_SECRET_BYTES // 2).encode()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=max(count, 16)) as door:
            store.set(_SECRET, secret)
            store.set(_PORT, str(door.getsockname()[1]))
            while len(self._ends) < count:
                if time.monotonic() > until:
                    raise OSError(f"not all of {count + 1} processes came")
                if self._ends and self.is_cut():
                    raise OSError("one of them ended before all had come")
                waiting(here)
                door.settimeout(POLL_S)
                with contextlib.suppress(TimeoutError):
                    end = door.accept()[0]
                    if (rank := _rank_of(end, secret)) is None:
                        # anything else on this network that knocks is sent away
                        end.close()
                        continue
                    self._keep(end)
                    if rank in here or rank > count:
                        raise OSError(f"two processes came as number {rank} of {count + 1}")
                    here.add(rank)
            for end in self._ends:
                end.sendall(_ALL_HERE)

    def _connect(self, store: Any, rank: int, longest_s: float) -> None:
        store.wait([_PORT, _SECRET], timedelta(seconds=longest_s))
        address = _host(store), int(store.get(_PORT))
        end = socket.create_connection(address, timeout=LONGEST_MEETING_S)
        self._keep(end)
        end.sendall(store.get(_SECRET) + rank.to_bytes(_RANK_BYTES, "little"))
        end.settimeout(longest_s)
        said = end.recv(len(_ALL_HERE))
        while said.isdigit() and (rest := end.recv(1)):
            said += rest
        if said.isdigit():
            raise EndedElsewhere(int(said))
        if said != _ALL_HERE:
            raise OSError("the leader ended before all had come")


def _rank_of(end: socket.socket, secret: bytes) -> int | None:
    """The number that a process gives which knows the secret."""
    end.settimeout(LONGEST_KNOCK_S)
    with contextlib.suppress(OSError):
        said = end.recv(_SECRET_BYTES + _RANK_BYTES, socket.MSG_WAITALL)
        if said[:_SECRET_BYTES] == secret:
            return int.from_bytes(said[_SECRET_BYTES:], "little")
    return None


def _host(store: Any) -> str:
    """The leader's, as this rank reached it."""
    while not hasattr(store, "host"):
        store = store.underlying_store
    host: str = store.host
    return host
