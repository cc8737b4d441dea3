"""What the ranks that follow did when: kept by each of them, and given to the leader when it asks.

A call costs two looks at a clock. Nothing travels until the leader asks, once, when its requests are done.

Legend: R ranks, B bytes.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable

import torch

from spec_sdk.ranks import Ranks

Call = tuple[str, float, float]
"""Its name, when it began (seconds since the epoch, by this machine's clock), its seconds on the host."""
MOST_CALLS = 1 << 16
"""How many are kept, the last: an engine may serve for days."""


class FollowerCalls:
    """The calls of one rank, none of them of the leader's."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=MOST_CALLS)

    def timed(self, name: str, call: Callable[[], None]) -> None:
        """Make ``call`` and keep when it was made."""
        began, start = time.time(), time.perf_counter()
        call()
        self._calls.append((name, began, time.perf_counter() - start))

    def gather(self, ranks: Ranks) -> dict[int, list[Call]]:
        """The calls since the last time, of every rank but the leader: every rank must ask for them together."""
        mine = json.dumps([*self._calls]).encode()
        self._calls.clear()
        size_R = ranks.all_gather(torch.tensor(len(mine)))
        mine_B = torch.zeros(int(size_R.max()), dtype=torch.uint8)
        mine_B[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        texts_RB = ranks.all_gather(mine_B).numpy()
        sizes = size_R.tolist()
        calls = [json.loads(texts_RB[rank, : sizes[rank]].tobytes()) for rank in range(ranks.size)]
        return {rank: [(name, begin, seconds) for name, begin, seconds in calls[rank]] for rank in range(1, ranks.size)}
