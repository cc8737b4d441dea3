"""Messages through a ring in memory arrive whole and in order, also those that are longer than the ring, whoever sends
more than the other reads; and who waits for one that is gone learns of it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spec_sdk.errors import RankLost
from spec_sdk_backends.mapped_memory import Patience, meet
from spec_sdk_backends.peer_channel import NBYTES, RING, PeerChannel
from tests.support.told import Told

SHAPES = [(3,), (0,), (2, 5), (RING // 4 - 7,), (RING // 2 + 3,), (1, 1, 7), (5 * RING // 16,)] * 3


def channels(look: Callable[[], None] = lambda: None, timeout_s: float = 30) -> list[PeerChannel]:
    told = Told()

    def end(index: int) -> PeerChannel:
        memory = meet(told.say, told.hear, index, 2, NBYTES)
        assert memory is not None
        return PeerChannel(memory, index, Patience(look, 0.05, timeout_s))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(end, range(2)))


def message(number: int, sender: int, dtype: torch.dtype) -> torch.Tensor:
    random = torch.Generator().manual_seed(2 * number + sender)
    return torch.randint(0, 100, SHAPES[number], generator=random).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_both_send_all_before_either_reads(dtype: torch.dtype) -> None:
    ends = channels()

    def talk(index: int) -> None:
        for number in range(len(SHAPES)):
            ends[index].send(message(number, index, dtype))
        found = [torch.empty(shape, dtype=dtype) for shape in SHAPES]
        waits = [ends[index].receive(x) for x in found]
        # a later one is there when those before it are
        for wait in (waits[5], *waits):
            wait()
        ends[index].flush()
        for number, x in enumerate(found):
            assert torch.equal(x, message(number, 1 - index, dtype))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(talk, range(2)))


def test_who_waits_sends_on_what_had_no_room() -> None:
    first, second = channels()
    long = torch.arange(RING, dtype=torch.int32)
    found = torch.empty_like(long)
    first.send(long)
    wait = second.receive(found)

    def of_first() -> None:
        answer = torch.zeros(1)
        first.receive(answer)()
        assert answer.item() == 5

    def of_second() -> None:
        wait()
        second.send(torch.full((1,), 5.0))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(of_first), pool.submit(of_second)]:
            done.result(30)
    assert torch.equal(found, long)


def test_what_was_sent_may_be_written_to_after_a_flush() -> None:
    first, second = channels()
    sent, found = torch.ones(RING // 2), torch.empty(RING // 2)
    first.send(sent)
    wait = second.receive(found)
    with ThreadPoolExecutor(2) as pool:
        flushed = pool.submit(first.flush)
        wait()
        flushed.result(30)
    sent.zero_()
    assert bool((found == 1).all())


def test_who_waits_looks_and_gives_up() -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise RankLost("gone")

    first, _ = channels(look)
    with pytest.raises(RankLost, match="gone"):
        first.receive(torch.empty(1))()
    first, _ = channels(timeout_s=0.1)
    first.send(torch.ones(RING))
    with pytest.raises(RankLost, match="nothing came for"):
        first.flush()
