"""Memory that processes share: every rank reads what the others wrote in the same round, however late they come; who is
not answered looks and gives up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spec_sdk.errors import RankLost
from spec_sdk_backends.mapped_memory import Patience, meet
from spec_sdk_backends.shared_memory import CAPACITY, SharedMemory, nbytes_for
from tests.support.told import Told

SIZE = 3


def shared(rank: int, told: Told, size: int, look: Callable[[], None], timeout_s: float) -> SharedMemory:
    memory = meet(told.say, told.hear, rank, size, nbytes_for(size))
    assert memory is not None
    return SharedMemory(memory, rank, size, Patience(look, 0.05, timeout_s))


def everyone(size: int = SIZE, look: Callable[[], None] = lambda: None, timeout_s: float = 30) -> list[SharedMemory]:
    told = Told()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: shared(rank, told, size, look, timeout_s), range(size)))


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
        assert torch.equal(memory.sum(mine[rank]), expected)
        assert torch.equal(memory.gather(mine[rank]), torch.stack(mine))
        message_B = mine[rank].view(-1).view(torch.uint8).clone()
        assert torch.equal(memory.of_first(message_B), mine[0].view(-1).view(torch.uint8))

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(take_part, range(SIZE)))


def test_who_waits_looks_and_gives_up() -> None:
    looks = []

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise RankLost("gone")

    first, _ = everyone(2, look)
    with pytest.raises(RankLost, match="gone"):
        first.exchange(torch.zeros(1, dtype=torch.uint8))
    _, impatient = everyone(2, timeout_s=0.1)
    with pytest.raises(RankLost, match="nothing came for"):
        impatient.exchange(torch.zeros(1, dtype=torch.uint8))
