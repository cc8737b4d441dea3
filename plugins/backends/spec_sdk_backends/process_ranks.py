"""Several processes as one group of ranks, over torch.distributed.

Tensors travel with the backend of their device (gloo on the CPU, nccl between GPUs); decisions travel as JSON in CPU
tensors, over gloo.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from spec_sdk.errors import RankLost
from spec_sdk.ranks import ALONE, DeviceGroups, Ranks, Wait

T = TypeVar("T")

BLOCK = 1024
"""Bytes of a decision's first message; a longer one takes a second."""
_LENGTH = 8
_TOLD, _STATUS = "spec_sdk/told", "spec_sdk/status"
PATIENCE_S = 0.4
"""How long a rank that failed leaves it to a better placed one to tell of it: the leader before the others, the rank
with the cause before those that only lost it."""
LINGER_S = 2.0
POLL_S = 0.05
"""How long the leader waits at most, after a failure, for the others to see that it was told of."""


class ProcessRanks(Ranks):
    """All ranks of torch.distributed's default process group, which must be up.

    ``timeout``: how long a part of them waits for each other; torch's own if left out.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._timeout = timeout
        self._halves: DeviceGroups | None = None
        # of torch.distributed; kept only here, since a connection lasts as long as something refers to its group
        self._half: Any = None
        # kept here, since the leader's may hold the server of all, and must outlive the group
        self._store: Any = dist.distributed_c10d._get_default_store()

    def decide(self, choose: Callable[[], T]) -> T:
        text = json.dumps(choose()).encode() if self.is_leader else b""
        first = torch.zeros(BLOCK, dtype=torch.uint8)
        if self.is_leader:
            message = bytearray(len(text).to_bytes(_LENGTH, "little") + text[: BLOCK - _LENGTH])
            first[: len(message)] = torch.frombuffer(message, dtype=torch.uint8)
        with self.together():
            dist.broadcast(first, src=0)
        received = first.numpy().tobytes()
        length = int.from_bytes(received[:_LENGTH], "little")
        received = received[_LENGTH : _LENGTH + length]
        if length > len(received):
            rest = torch.zeros(length - len(received), dtype=torch.uint8)
            if self.is_leader:
                rest = torch.frombuffer(bytearray(text[len(received) :]), dtype=torch.uint8)
            with self.together():
                dist.broadcast(rest, src=0)
            received += rest.numpy().tobytes()
        decision: T = json.loads(received)
        return decision

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        with self.together():
            dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        gathered = x.new_empty((self.size, *x.shape))
        with self.together():
            dist.all_gather(list(gathered.unbind(0)), x.contiguous())
        return gathered

    def halves(self) -> DeviceGroups:
        if self.size % 2:
            raise ValueError(f"{self.size} ranks are no two groups of one size")
        if self._halves is None:
            size = self.size // 2
            index, place = divmod(self.rank, size)
            group = ALONE
            if size > 1:
                with self.together():
                    # every rank must make both
                    made = [dist.new_group(range(i * size, (i + 1) * size), self._timeout) for i in range(2)]
                self._half = made[index]
                group = _Half(self, place, size)
            self._halves = DeviceGroups(index, group, _Peer(self, (1 - index) * size + place))
        return self._halves

    def leader_first(self, key: str, prepare: Callable[[], T]) -> T:
        key = f"spec_sdk/prepared/{key}"
        if not self.is_leader:
            with self.together():
                # not waited for in one piece, so that a leader that fails elsewhere is noticed
                while not self._store.check([key]):
                    if self._store.check([_TOLD]):
                        raise RankLost("another process of this run ended")
                    time.sleep(POLL_S)
                if self._store.get(key) != b"ready":
                    raise RankLost("the leader could not prepare what this rank needs")
            return prepare()
        outcome = "failed"
        try:
            prepared = prepare()
            outcome = "ready"
            return prepared
        finally:
            self._store.set(key, outcome)

    def settle(self, error: BaseException, status: int) -> tuple[bool, int]:
        # whoever waits for this rank wakes up when its connections close, and they do when nothing refers to the group
        _clear_frames(error)
        self.close()
        time.sleep(PATIENCE_S * (2 * isinstance(error, RankLost) + (not self.is_leader)))
        try:
            tells = self._store.add(_TOLD, 1) == 1
            if tells:
                self._store.set(_STATUS, str(status))
            else:
                self._store.wait([_STATUS], timedelta(seconds=LINGER_S))
                status = int(self._store.get(_STATUS))
            until = time.monotonic() + LINGER_S
            while self.is_leader and self._store.add(_TOLD, 0) < self.size and time.monotonic() < until:
                time.sleep(POLL_S)
        except RuntimeError:
            # the store went with the process that held it, so nothing was told
            return True, status
        return tells, status

    def close(self) -> None:
        self._half = None
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(f"another process of this run went away or stands still ({reason(error)})") from error


class _Half(Ranks):
    """The ranks of this one's device group, of two."""

    def __init__(self, everyone: ProcessRanks, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._everyone = everyone

    def decide(self, choose: Callable[[], T]) -> T:
        raise RuntimeError("what is decided, all ranks are told: a device group decides nothing of its own")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        with self._everyone.together():
            dist.all_reduce(x, group=self._everyone._half)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        gathered = x.new_empty((self.size, *x.shape))
        with self._everyone.together():
            dist.all_gather(list(gathered.unbind(0)), x.contiguous(), group=self._everyone._half)
        return gathered


class _Peer:
    """Another rank, for messages from this one to it and back."""

    def __init__(self, everyone: ProcessRanks, rank: int) -> None:
        self._everyone = everyone
        self._rank = rank

    def send(self, x: torch.Tensor) -> Wait:
        with self._everyone.together():
            return self._wait(dist.isend(x, self._rank))

    def receive(self, x: torch.Tensor) -> Wait:
        with self._everyone.together():
            return self._wait(dist.irecv(x, self._rank))

    def _wait(self, message: Any) -> Wait:
        def wait() -> None:
            with self._everyone.together():
                message.wait()

        return wait


def _clear_frames(error: BaseException) -> None:
    """Drop the local variables of all frames that ``error`` and its causes went through; line numbers stay."""
    links, seen = [error], set()
    while links:
        link = links.pop()
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        links += [cause for cause in (link.__cause__, link.__context__) if cause is not None and id(cause) not in seen]


def reason(error: RuntimeError) -> str:
    """What torch.distributed says, without the place in its source and without advice to its developers."""
    line = re.sub(r"^\[[^]]*\] *", "", str(error).strip().splitlines()[0])
    return line.split(". ")[0].rstrip(".")
