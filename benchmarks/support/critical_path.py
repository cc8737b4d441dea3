"""How long several processes would take on cores of their own, from what each computed and waited for on shared ones.

Every rank logs the CPU time of its thread at each message and each collective operation. Replayed in order, a wait ends
when the message was sent plus its time on the way, a collective when the last rank reached it plus its own time; those
times are the least of many, measured by themselves. Time in which another program had the core counts nowhere. Shared
caches and memory still do.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch

from spec_sdk.ranks import Peer, Ranks, Wait

T = TypeVar("T")
Event = tuple[str, int, float, float]
"""Kind, numbers carried, CPU seconds at its beginning and at its end; the end of all is a kind of its own."""
SEND, RECEIVE, REDUCE, GATHER, END = "send", "receive", "all_reduce", "all_gather", "end"
REPEATS = 200


class Log:
    """The events of one rank since :meth:`clear`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def clear(self) -> None:
        """Begin anew, now."""
        self.events = [(END, 0, time.thread_time(), time.thread_time())]

    def timed(self, kind: str, numbers: int, act: Callable[[], T]) -> T:
        began = time.thread_time()
        done = act()
        self.events.append((kind, numbers, began, time.thread_time()))
        return done


class LoggedRanks(Ranks):
    """``ranks``, whose sums and gatherings are logged."""

    def __init__(self, ranks: Ranks, log: Log) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self._log = ranks, log

    def decide(self, choose: Callable[[], T]) -> T:
        return self._ranks.decide(choose)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._log.timed(REDUCE, x.numel(), lambda: self._ranks.all_reduce(x))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._log.timed(GATHER, x.numel(), lambda: self._ranks.all_gather(x))

    def leader_first(self, key: str, prepare: Callable[[], T]) -> T:
        return self._ranks.leader_first(key, prepare)

    def told_by_leader(self, key: str, tell: Callable[[], str]) -> str:
        return self._ranks.told_by_leader(key, tell)


class LoggedPeer:
    """``peer``, whose messages are logged: when they are sent, and when they are waited for."""

    def __init__(self, peer: Peer, log: Log) -> None:
        self._peer, self._log = peer, log

    def send(self, x: torch.Tensor) -> None:
        self._log.timed(SEND, x.numel(), lambda: self._peer.send(x))

    def flush(self) -> None:
        self._peer.flush()

    def receive(self, x: torch.Tensor) -> Wait:
        wait = self._peer.receive(x)
        return lambda: self._log.timed(RECEIVE, x.numel(), wait)


def critical_path(logs: Sequence[Sequence[Event]], way: Mapping[tuple[str, int], float]) -> float:
    """Seconds from the beginning of the ``logs`` of two ranks until the first of them, the leader, has ended.

    ``way``: seconds per kind and numbers. Messages of one direction are waited for in the order of their sending.
    """
    clock, place = [0.0, 0.0], [1, 1]
    sent: dict[int, list[float]] = defaultdict(list)
    received = [0, 0]
    while any(place[rank] < len(log) for rank, log in enumerate(logs)):
        before = list(place)
        for rank, log in enumerate(logs):
            while place[rank] < len(log):
                kind, numbers, began, ended = log[place[rank]]
                reached = clock[rank] + began - log[place[rank] - 1][3]
                if kind == SEND:
                    # starting to send keeps the sender busy
                    reached += ended - began
                    sent[rank].append(reached)
                elif kind == RECEIVE:
                    if received[rank] == len(sent[1 - rank]):
                        break
                    reached = max(reached, sent[1 - rank][received[rank]] + way[RECEIVE, numbers])
                    received[rank] += 1
                elif kind in (REDUCE, GATHER):
                    other = 1 - rank
                    if place[other] >= len(logs[other]) or logs[other][place[other]][:2] != (kind, numbers):
                        break
                    other_reached = clock[other] + logs[other][place[other]][2] - logs[other][place[other] - 1][3]
                    reached = max(reached, other_reached) + way[kind, numbers]
                    clock[other] = reached
                    place[other] += 1
                clock[rank] = reached
                place[rank] += 1
        if place == before:
            raise ValueError("the two logs do not fit together")
    return clock[0]


def on_the_way(kinds: Iterable[tuple[str, int]], ranks: Ranks, peer: Peer) -> dict[tuple[str, int], float]:
    """Seconds of each kind of message and collective operation: the least of many. Both ranks must ask for the same."""
    found = {}
    for kind, numbers in kinds:
        x, times = torch.zeros(numbers), []
        for _ in range(REPEATS):
            began = time.perf_counter()
            if kind == REDUCE:
                ranks.all_reduce(x)
            elif kind == GATHER:
                ranks.all_gather(x)
            else:
                _there_and_back(x, ranks, peer)
            times.append(time.perf_counter() - began)
        found[kind, numbers] = min(times) / (2 if kind == RECEIVE else 1)
    return found


def _there_and_back(x: torch.Tensor, ranks: Ranks, peer: Peer) -> None:
    back = peer.receive(x.clone())
    if ranks.rank == 0:
        peer.send(x)
        back()
    else:
        back()
        peer.send(x)
    peer.flush()
