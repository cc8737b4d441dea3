"""A process whose end gloo does not report is missed all the same, and its leader ends soon and with one line."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from spec_sdk.errors import EndedElsewhere, RankLost
from spec_sdk_backends.lifelines import Lifelines
from spec_sdk_backends.process_ranks import reason
from tests.distributed.support import start

ROOT = Path(__file__).parents[2]
LOST = 3
SOON_S = 60
SIZE = 3


@pytest.mark.parametrize("waits_for", ["sum", "memory", "message", pytest.param("decision", marks=pytest.mark.full)])
def test_the_leader_ends(waits_for: str) -> None:
    processes = start(2, ["-m", "tests.distributed.silent_peer", waits_for], ROOT)
    began = time.monotonic()
    try:
        _, err = processes[0].communicate(timeout=SOON_S)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode == LOST, err
    assert err.strip().splitlines() == ["error: another process of this run went away (its connection is closed)"]
    assert time.monotonic() - began < SOON_S


def test_a_lifeline_is_cut_when_its_other_end_is_closed() -> None:
    leader, second, third = _meet()
    assert not any(lifelines.is_cut() for lifelines in (leader, second, third))
    second.close()
    assert leader.is_cut() and second.is_cut()
    assert not third.is_cut()
    leader.close()
    assert third.is_cut()
    third.close()


def test_who_leaves_after_its_work_is_not_missed() -> None:
    """Another rank may be slower to see that all is done, and the leader wait for that one."""
    leader, second, third = _meet()
    second.leave()
    assert not leader.is_cut() and not leader.is_cut()
    third.close()
    assert leader.is_cut()
    leader.close()
    for lifelines in (leader, second, third):
        assert lifelines.is_cut()


def test_who_does_not_know_the_secret_is_sent_away() -> None:
    def knock(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n")

    ranks = _meet(knock)
    assert not any(lifelines.is_cut() for lifelines in ranks)
    for lifelines in ranks:
        lifelines.close()


def test_a_leader_that_waits_knows_who_is_there_and_who_has_ended() -> None:
    """And tells the others with which status it ends."""
    server, here = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), list[set[int]]()
    third = TCPStore("127.0.0.1", server.port, is_master=False)

    def waits(ranks: Collection[int]) -> None:
        here.append(set(ranks))

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(Lifelines, server, 0, SIZE + 1, waits, SOON_S)
        with _came_as(2, third):
            other = pool.submit(Lifelines, third, 1, SIZE + 1)
            while {1, 2} not in here:
                time.sleep(0.01)
        with pytest.raises(RankLost, match="one of them ended before all had come"):
            leader.result(SOON_S)
        with pytest.raises(EndedElsewhere) as ended:
            other.result(SOON_S)
    assert here[0] == set() and ended.value.status == LOST


def test_a_leader_that_is_interrupted_says_so() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    second = TCPStore("127.0.0.1", server.port, is_master=False)

    def interrupt(ranks: Collection[int]) -> None:
        if ranks:
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(Lifelines, second, 1, SIZE)
        with pytest.raises(KeyboardInterrupt):
            Lifelines(server, 0, SIZE, interrupt, SOON_S)
        with pytest.raises(EndedElsewhere) as ended:
            other.result(SOON_S)
    assert ended.value.status == 130


def test_two_processes_of_one_number_are_refused() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    others = TCPStore("127.0.0.1", server.port, is_master=False)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(Lifelines, server, 0, SIZE)
        refused = pytest.raises(RankLost, match="two processes came as number 1 of 3")
        with _came_as(1, others), _came_as(1, others), refused:
            leader.result(SOON_S)


def _came_as(rank: int, store: TCPStore) -> socket.socket:
    """A connection that says so, as a process makes it."""
    store.wait(["spec_sdk/lifeline_port", "spec_sdk/lifeline_secret"], timedelta(seconds=SOON_S))
    end = socket.create_connection(("127.0.0.1", int(store.get("spec_sdk/lifeline_port"))))
    end.sendall(store.get("spec_sdk/lifeline_secret") + rank.to_bytes(4, "little"))
    return end


def test_a_reason_is_what_happened_and_not_where() -> None:
    error = RuntimeError("[../gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1. This may mean a bug\nmore")
    assert reason(error) == "Connection closed by peer [127.0.0.1]:1"


def _meet(before_others: Callable[[int], None] | None = None) -> list[Lifelines]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [server, *(TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(SIZE - 1))]
    with ThreadPoolExecutor(SIZE) as pool:
        leader = pool.submit(Lifelines, stores[0], 0, SIZE)
        if before_others is not None:
            key = "spec_sdk/lifeline_port"
            stores[1].wait([key], timedelta(seconds=SOON_S))
            before_others(int(stores[1].get(key)))
        others = [pool.submit(Lifelines, stores[rank], rank, SIZE) for rank in range(1, SIZE)]
        return [future.result(SOON_S) for future in (leader, *others)]
