"""Memory that processes share: every rank reads what the others wrote in the same round, however late they come; who is
not answered looks and gives up; and nothing is left behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from spec_sdk.errors import RankLost
from spec_sdk_backends import shared_memory
from spec_sdk_backends.shared_memory import CAPACITY, PLACE, SharedMemory, meet

SIZE = 3


class Told:
    """A store of texts, for threads in the place of processes."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = threading.Condition()

    def say(self, key: str, text: str) -> None:
        with self.changed:
            self.texts[key] = text
            self.changed.notify_all()

    def hear(self, key: str) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.texts, 10)
            return self.texts[key]


def met(
    told: Told, rank: int, size: int = SIZE, look: Callable[[], None] = lambda: None, timeout_s: float = 30
) -> SharedMemory | None:
    return meet(told.say, told.hear, rank, size, look, 0.05, timeout_s)


def everyone(size: int = SIZE) -> list[SharedMemory | None]:
    told = Told()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: met(told, rank, size), range(size)))


def files() -> set[Path]:
    return set(PLACE.glob("spec-sdk-*"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> object:
    before = files()
    yield
    assert files() <= before


@pytest.mark.parametrize("size", [1, 2, SIZE])
def test_every_rank_has_every_message_of_a_round(size: int) -> None:
    memories, rounds = everyone(size), 40
    random = torch.Generator().manual_seed(size)
    lengths = torch.randint(0, 3000, (rounds, size), generator=random).tolist()
    lengths[7][0] = CAPACITY

    def message(turn: int, rank: int) -> torch.Tensor:
        return torch.full((lengths[turn][rank],), (7 * turn + rank) % 251, dtype=torch.uint8)

    def take_part(rank: int) -> int:
        memory = memories[rank]
        assert memory is not None
        for turn in range(rounds):
            if (turn + rank) % 11 == 0:
                time.sleep(0.01)
            messages_RB = memory.exchange(message(turn, rank))
            for other in range(size):
                assert torch.equal(messages_RB[other, : lengths[turn][other]], message(turn, other))
        return rounds

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(take_part, range(size))) == [rounds] * size


@pytest.mark.parametrize("shape", [(), (0, 5), (3, 7), (CAPACITY // 4,), (5, CAPACITY // 16 + 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_sums_and_tensors_of_any_length(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Longer ones than a message go by pieces."""
    random = torch.Generator().manual_seed(1)
    mine = [torch.randint(-99, 99, shape, generator=random).to(dtype) for _ in range(SIZE)]
    expected = mine[0].clone()
    for other in mine[1:]:
        expected += other
    memories = everyone()

    def take_part(rank: int) -> None:
        memory = memories[rank]
        assert memory is not None
        assert torch.equal(memory.sum(mine[rank]), expected)
        assert torch.equal(memory.gather(mine[rank]), torch.stack(mine))
        message_B = mine[rank].view(-1).view(torch.uint8).clone()
        assert torch.equal(memory.of_first(message_B), mine[0].view(-1).view(torch.uint8))

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(take_part, range(SIZE)))


def test_where_one_cannot_reach_it_none_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told, reach = Told(), shared_memory._suits
    outsider = threading.Event()
    monkeypatch.setattr(shared_memory, "_suits", lambda: reach() and threading.current_thread().name != "1")

    def named(rank: int) -> SharedMemory | None:
        threading.current_thread().name = str(rank)
        outsider.set()
        return met(told, rank)

    with ThreadPoolExecutor(SIZE) as pool:
        assert list(pool.map(named, range(SIZE))) == [None] * SIZE
    assert told.texts["reached/1"] == "" and told.texts["reached/2"] == "yes"


@pytest.mark.parametrize("found", [b"\0", b"\xff"])
def test_another_file_in_its_place_is_not_taken(found: bytes, tmp_path: Path) -> None:
    """As where another machine has one of the same name."""
    (tmp_path / "file").write_bytes(found * (shared_memory._bytes(2) + 32))
    told = Told()
    told.say("place", f"{tmp_path / 'file'} {'0' * 32}")
    told.say("reached/0", "yes")
    assert met(told, 1, 2) is None and told.texts["reached/1"] == ""


def test_without_a_place_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_memory, "PLACE", tmp_path / "nowhere")
    assert everyone() == [None] * SIZE


def test_who_waits_looks_and_gives_up() -> None:
    told = Told()
    looks = []

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise RankLost("gone")

    with ThreadPoolExecutor(2) as pool:
        memories = list(pool.map(lambda rank: met(told, rank, 2, look), range(2)))
    assert memories[0] is not None and memories[1] is not None
    with pytest.raises(RankLost, match="gone"):
        memories[0].exchange(torch.zeros(1, dtype=torch.uint8))
    told = Told()
    with ThreadPoolExecutor(2) as pool:
        impatient = list(pool.map(lambda rank: met(told, rank, 2, timeout_s=0.1), range(2)))
    assert impatient[1] is not None
    with pytest.raises(RankLost, match="nothing came for"):
        impatient[1].exchange(torch.zeros(1, dtype=torch.uint8))
