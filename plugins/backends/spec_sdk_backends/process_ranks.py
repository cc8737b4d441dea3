"""Several processes as one group of ranks, over torch.distributed.

Tensors travel with the backend of their device (gloo on the CPU, nccl between GPUs); decisions travel as JSON in CPU
tensors. Those of the CPU go through memory that the processes of one machine share, where they have any.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import mmap
import re
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from spec_sdk.cli.ending import end_now
from spec_sdk.errors import RankLost
from spec_sdk.ranks import ALONE, DeviceGroups, Ranks, Wait
from spec_sdk_backends import peer_channel
from spec_sdk_backends.lifelines import Lifelines
from spec_sdk_backends.mapped_memory import Patience, meet
from spec_sdk_backends.meeting import Meeting
from spec_sdk_backends.peer_channel import PeerChannel
from spec_sdk_backends.shared_memory import SharedMemory, SharingRanks, nbytes_for

T = TypeVar("T")

BLOCK = 1024
"""Bytes of a decision's first message; a longer one takes a second."""
_LENGTH = 8
_TOLD, _STATUS = "spec_sdk/failure_told", "spec_sdk/status"
PATIENCE_S = 0.4
"""How long a rank that failed leaves it to a better placed one to tell of it: the leader before the others, the rank
with the cause before those that only lost it."""
LINGER_S = 2.0
"""How long the leader waits at most, after a failure, for the others to see that it was told of."""
POLL_S = 0.05
AGREEMENT_S = 6.0
"""How long a rank that failed asks the store who tells of it. A leader that stands still never answers, and
torch.distributed's store has no timeout for an answer."""
LOOK = timedelta(seconds=0.5)
"""How often a rank that waits looks whether the other processes are still there."""


class ProcessRanks(SharingRanks):
    """All ranks of torch.distributed's default process group, which must be up.

    ``timeout``: how long a part of them waits for each other; torch's own if left out. ``shares_memory``: whether those
    of one machine do. ``meeting``: where they met, if they have lifelines from there.
    """

    def __init__(
        self, timeout: timedelta | None = None, shares_memory: bool = False, meeting: Meeting | None = None
    ) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._timeout = timeout
        self._halves: dict[tuple[int, ...], DeviceGroups] = {}
        # of torch.distributed; kept only here, since a connection lasts as long as something refers to its group
        self._groups: dict[tuple[int, ...], Any] = {}
        self._parts: dict[tuple[int, ...], _Part] = {}
        self._channels: dict[int, PeerChannel | None] = {}
        # kept here, since the leader's may hold the server of all, and must outlive the group
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._meeting = meeting
        self._lifelines = meeting.lifelines if meeting else Lifelines(self._store, self.rank, self.size)
        self._is_stuck = False
        self._status_when_stuck: int | None = None
        atexit.register(self._end_if_stuck)
        self._shares_memory = shares_memory
        self.patience_s = (timeout or timedelta(minutes=30)).total_seconds()
        self._patience = Patience(self.look, LOOK.total_seconds(), self.patience_s)
        self.memory = self._share_memory(tuple(range(self.size)))

    def _share_memory(self, ranks: tuple[int, ...]) -> SharedMemory | None:
        """Memory for these ranks alone, of which this is one."""
        memory = self._map_memory("-".join(map(str, ranks)), ranks, nbytes_for(len(ranks)))
        return None if memory is None else SharedMemory(memory, ranks.index(self.rank), len(ranks), self._patience)

    def _channel_to(self, peer: int) -> PeerChannel | None:
        """To the rank that asks for one to this."""
        if peer not in self._channels:
            pair = min(self.rank, peer), max(self.rank, peer)
            memory = self._map_memory("peers {}-{}".format(*pair), pair, peer_channel.NBYTES)
            channel = None if memory is None else PeerChannel(memory, pair.index(self.rank), self._patience)
            self._channels[peer] = channel
        return self._channels[peer]

    def _map_memory(self, name: str, ranks: tuple[int, ...], nbytes: int) -> mmap.mmap | None:
        with self.together():
            return meet(
                lambda key, text: self._store.set(f"spec_sdk/memory/{name}/{key}", text),
                lambda key: self._told(f"spec_sdk/memory/{name}/{key}").decode(),
                ranks.index(self.rank),
                len(ranks),
                nbytes,
                self._shares_memory,
            )

    def decide(self, choose: Callable[[], T]) -> T:
        text = json.dumps(choose()).encode() if self.is_leader else b""
        first = torch.zeros(BLOCK, dtype=torch.uint8)
        if self.is_leader:
            message = bytearray(len(text).to_bytes(_LENGTH, "little") + text[: BLOCK - _LENGTH])
            first[: len(message)] = torch.frombuffer(message, dtype=torch.uint8)
        first = self._of_leader(first)
        received = first.numpy().tobytes()
        length = int.from_bytes(received[:_LENGTH], "little")
        received = received[_LENGTH : _LENGTH + length]
        if length > len(received):
            rest = torch.zeros(length - len(received), dtype=torch.uint8)
            if self.is_leader:
                rest = torch.frombuffer(bytearray(text[len(received) :]), dtype=torch.uint8)
            received += self._of_leader(rest).numpy().tobytes()
        decision: T = json.loads(received)
        return decision

    def _of_leader(self, message_B: torch.Tensor) -> torch.Tensor:
        """The leader's bytes of a message that is as long on all ranks."""
        with self.together():
            if self.memory is not None:
                return self.memory.of_first(message_B)
            self.complete(dist.broadcast(message_B, src=0, async_op=True), message_B)
        return message_B

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum_among(None, self.memory, x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self.gather_among(None, self.memory, x)

    def sum_among(self, members: tuple[int, ...] | None, memory: SharedMemory | None, x: torch.Tensor) -> torch.Tensor:
        """:meth:`all_reduce` of ``members``, this rank among them, or all; through ``memory``, which is theirs."""
        x = x.contiguous()
        with self.together():
            if memory is not None and x.device.type == "cpu":
                return memory.sum(x)
            self.complete(dist.all_reduce(x, group=self._group_of(members), async_op=True), x)
        return x

    def gather_among(
        self, members: tuple[int, ...] | None, memory: SharedMemory | None, x: torch.Tensor
    ) -> torch.Tensor:
        """:meth:`all_gather`, as :meth:`sum_among` sums."""
        x = x.contiguous()
        with self.together():
            if memory is not None and x.device.type == "cpu":
                return memory.gather(x)
            group = self._group_of(members)
            gathered = x.new_empty((dist.get_world_size(group), *x.shape))
            self.complete(dist.all_gather(list(gathered.unbind(0)), x, group=group, async_op=True), x)
        return gathered

    def _group_of(self, members: tuple[int, ...] | None) -> Any:
        """torch.distributed's group of them; None stands for all."""
        return None if members is None else self._groups[members]

    def halves(self, first: Sequence[int] | None = None) -> DeviceGroups:
        size = self.size // 2
        leaders = tuple(sorted(range(size) if first is None else first))
        if self.size % 2 or len(leaders) != size:
            raise ValueError(f"{self.size} ranks are no two groups of one size")
        if leaders not in self._halves:
            members = leaders, tuple(rank for rank in range(self.size) if rank not in leaders)
            # every rank must make both
            made = [self.among(ranks) for ranks in members]
            index = int(self.rank not in leaders)
            place = members[index].index(self.rank)
            other = members[1 - index][place]
            self._halves[leaders] = DeviceGroups(index, made[index], _Peer(self, other, self._channel_to(other)))
        return self._halves[leaders]

    def among(self, members: Collection[int]) -> Ranks:
        ranks = tuple(sorted(set(members)))
        if not ranks or not 0 <= ranks[0] <= ranks[-1] < self.size:
            raise ValueError(f"{list(ranks)} are no ranks of {self.size}")
        if len(ranks) == self.size:
            return self
        if len(ranks) == 1:
            return ALONE
        if ranks not in self._parts:
            with self.together():
                self._groups[ranks] = dist.new_group(ranks, self._timeout)
            memory = self._share_memory(ranks) if self.rank in ranks else None
            self._parts[ranks] = _Part(self, ranks, memory)
        return self._parts[ranks]

    def leader_first(self, key: str, prepare: Callable[[], T]) -> T:
        prepared: list[T] = []

        def ready() -> str:
            prepared.append(prepare())
            return "ready"

        self.told_by_leader(f"prepared {key}", ready)
        return prepared[0] if prepared else prepare()

    def told_by_leader(self, key: str, tell: Callable[[], str]) -> str:
        key = f"spec_sdk/told/{key}"
        if not self.is_leader:
            if not (text := self._told(key).decode()):
                raise RankLost("the leader could not prepare what this rank needs")
            return text
        text = ""
        try:
            text = tell()
            return text
        finally:
            self._store.set(key, text)

    def _told(self, key: str) -> bytes:
        """What another rank tells under ``key``, however long it takes."""
        with self.together():
            # not waited for in one piece, so that a rank that fails elsewhere is noticed
            while not self._store.check([key]):
                if self._store.check([_TOLD]):
                    raise RankLost("another process of this run ended")
                self.look()
                time.sleep(POLL_S)
            found: bytes = self._store.get(key)
            return found

    def settle(self, error: BaseException, status: int) -> tuple[bool, int]:
        # whoever waits for this rank wakes up when its connections close, and they do when nothing refers to the group
        _clear_frames(error)
        self._lifelines.close()
        self.close()
        tells, status = self._agree_on_end(error, status)
        self._status_when_stuck = status
        return tells, status

    def _agree_on_end(self, error: BaseException, status: int) -> tuple[bool, int]:
        time.sleep(PATIENCE_S * (2 * isinstance(error, RankLost) + (not self.is_leader)))
        answers: list[tuple[bool, int]] = []
        asking = threading.Thread(target=lambda: answers.append(self._ask_who_tells(status)), daemon=True)
        asking.start()
        asking.join(AGREEMENT_S)
        if not answers:
            self._is_stuck = True
            return True, status
        return answers[0]

    def _ask_who_tells(self, status: int) -> tuple[bool, int]:
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
        self._groups.clear()
        self._lifelines.leave()
        # it would wait for the operation that does not end
        if dist.is_initialized() and not self._is_stuck:
            dist.destroy_process_group()

    def complete(self, work: Any, x: torch.Tensor) -> None:
        """Wait for a collective operation on ``x``. Raises RankLost if a process ends meanwhile and gloo is silent."""
        if x.is_cuda:
            # the stream waits, not the host, and nccl has a watchdog of its own
            work.wait()
            return
        done = False
        try:
            while not done:
                try:
                    work.wait(LOOK)
                    done = True
                except RuntimeError:
                    done = work.is_completed()
                    if not done:
                        self.look()
            # it ended just after a look, or failed: then this says why
            work.wait()
        finally:
            self._is_stuck |= not done

    def look(self) -> None:
        """Raise RankLost if another process of the run has ended."""
        if self._lifelines.is_cut():
            self._is_stuck = True
            raise RankLost("another process of this run went away (its connection is closed)")

    def _end_if_stuck(self) -> None:
        """End at once: torch.distributed's threads wait for what never comes, and the interpreter would for them."""
        if self._is_stuck and self._status_when_stuck is not None:
            end_now(self._status_when_stuck)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(f"another process of this run went away or stands still ({reason(error)})") from error


class _Part(SharingRanks):
    """Some of the ranks, with the memory that these share."""

    def __init__(self, everyone: ProcessRanks, members: tuple[int, ...], memory: SharedMemory | None) -> None:
        # who is not one of them must not use it
        self.rank = members.index(everyone.rank) if everyone.rank in members else 0
        self.size = len(members)
        self.memory = memory
        self._everyone = everyone
        self._members = members

    def decide(self, choose: Callable[[], T]) -> T:
        raise RuntimeError("what is decided, all ranks are told: some of them decide nothing of their own")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._everyone.sum_among(self._members, self.memory, x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._everyone.gather_among(self._members, self.memory, x)


class _Peer:
    """Another rank, for messages to it and back; those of the CPU through ``channel`` where there is one."""

    def __init__(self, everyone: ProcessRanks, rank: int, channel: PeerChannel | None) -> None:
        self._everyone = everyone
        self._rank = rank
        self._channel = channel
        # a message's tensor must live until it is through
        self._sent: list[tuple[torch.Tensor, Any]] = []

    def send(self, x: torch.Tensor) -> None:
        if self._channel is not None and x.device.type == "cpu":
            self._channel.send(x)
            return
        with self._everyone.together():
            self._sent.append((x, dist.isend(x, self._rank)))

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()
        sent, self._sent = self._sent, []
        on_host = [work for x, work in sent if not x.is_cuda]
        with self._everyone.together():
            for x, work in sent:
                if x.is_cuda:
                    work.wait()
            if on_host:
                self._wait_aside(on_host)

    def receive(self, x: torch.Tensor) -> Wait:
        if self._channel is not None and x.device.type == "cpu":
            return self._channel.receive(x)
        with self._everyone.together():
            message = dist.irecv(x, self._rank)
        assert message is not None

        def wait() -> None:
            with self._everyone.together():
                message.wait()

        return wait

    def _wait_aside(self, sent: Sequence[Any]) -> None:
        """Wait in another thread, since gloo neither wakes who waits for a send to a dead process, nor can it look."""
        failed: list[RuntimeError] = []

        def wait() -> None:
            try:
                for work in sent:
                    work.wait()
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK.total_seconds())
            if thread.is_alive():
                self._everyone.look()
        if failed:
            raise failed[0]


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
