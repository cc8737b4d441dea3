"""The processes of a run that compute together, and who among them decides.

A launcher (``accelerate launch``, ``torchrun``) starts the same command several times; each of these processes is a
*rank*. Rank 0, the *leader*, runs the token cycle; the others follow it (:mod:`spec_sdk.parallel.spread_session`): no
rank goes by its own clock or its own random numbers. Only the leader reads prompts, prints and writes files.

A group of ranks that holds the target together is a *device group*. A run has one, of all its ranks, or two that hold
the target twice (:meth:`Ranks.halves`). :class:`Ranks` itself is one process alone, and what several processes do lies
in a backend.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from spec_sdk.errors import UserError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
_LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
"""What ``accelerate launch`` always sets."""
_PATIENCE_S, _LONGEST_START_S, _POLL_S, _LONGEST_TELLING_S = 3.0, 20.0, 0.2, 6.0
"""How long a launcher may take to end a process whose leader failed as it did, a leader to listen for others, and
telling it.
"""
REFUSED = "refused"
"""The key under which a process that failed before it met the others says its rank and status."""


class Ranks:
    """One process alone: everything is decided, summed and gathered here."""

    rank: int = 0
    size: int = 1
    patience_s: float = math.inf
    """How long a rank waits for the others before the run ends."""

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def decide(self, choose: Callable[[], T]) -> T:
        """The leader's ``choose()``, on every rank; the others do not call theirs.

        With several ranks the result travels as JSON: numbers, texts, lists (a tuple becomes one) and None.
        """
        return choose()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``x``, bit for bit the same on each of them. May overwrite ``x``."""
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """All ranks' ``x``, which have one shape, in the order of ranks: [size, *x.shape]."""
        return x[None]

    def halves(self, first: Sequence[int] | None = None) -> DeviceGroups:
        """All ranks as two device groups of one size: ``first``, the leader among them, and the others.

        Without ``first`` they are the first half and the second. Every rank asks for them, with the same ranks, and
        gets the same ones each time. Raises ValueError for an odd number of ranks, or another size.
        """
        raise ValueError("one process is no two device groups")

    def among(self, members: Collection[int]) -> Ranks:
        """These ranks alone, in their order, for what they sum and gather among themselves.

        Every rank asks for them, also one that is not among them, which gets a group that it must not use. Nothing is
        decided there: that all ranks are told. Raises ValueError for a rank that there is not, or none.
        """
        if set(members) != {0}:
            raise ValueError(f"one process has no ranks {sorted(members)}")
        return self

    def leader_first(self, key: str, prepare: Callable[[], T]) -> T:
        """``prepare()``, on the leader before the others, who wait as long as it takes. ``key`` names it, once a run.

        For what leaves something behind on disk that the others then find. The leader may do it alone.
        """
        return prepare()

    def told_by_leader(self, key: str, tell: Callable[[], str]) -> str:
        """The leader's ``tell()``, some text. ``key`` names it, once a run. The leader may tell alone, and waits for
        nobody.
        """
        return tell()

    def settle(self, error: BaseException, status: int) -> tuple[bool, int]:
        """How this rank ends over ``error``: whether it is the one that tells of it, and the run's exit status.

        ``status`` is what the error alone would mean. The others are given up: nothing works over the group after it.
        """
        return True, status

    def finish(self) -> None:
        """Wait for the leader to have done all of a run: a rank that follows ends as the leader does."""
        self.decide(lambda: None)

    def close(self) -> None:
        """Leave the group."""


Wait = Callable[[], None]
"""Returns when a message is through: its tensor holds what was sent."""


class Peer(Protocol):
    """The rank of the other device group that has this one's place in it. Messages of a direction keep their order."""

    def send(self, x: torch.Tensor) -> None:
        """Start to send ``x``, which is contiguous and not written to before :meth:`flush`, and return."""

    def flush(self) -> None:
        """Return when everything that was sent is through."""

    def receive(self, x: torch.Tensor) -> Wait:
        """Start to receive into ``x``, which has the shape and type of what is sent, and return."""


@dataclass(frozen=True)
class DeviceGroups:
    """Two device groups, as a rank of one of them sees them.

    ``index``: 0 or 1, this rank's group; group 0 is the leader's. ``group``: the ranks of it, among which the target is
    spread. ``peer``: the rank that holds the same part of the target in the other one.
    """

    index: int
    group: Ranks
    peer: Peer


ALONE = Ranks()
_joined: list[Ranks] = []


def join(ranks: Ranks) -> Ranks:
    """Make ``ranks`` the group that this process belongs to. A backend does this once."""
    _joined[:] = [ranks]
    return ranks


def joined() -> Ranks | None:
    """The group that this process belongs to; None if it has joined none (yet)."""
    return _joined[0] if _joined else None


def launched_processes() -> int:
    """How many processes a launcher started for this run; 1 without one."""
    return _first_number(_SIZES, 1)


def launched_rank() -> int:
    """This process's number among them; 0 without a launcher."""
    return _first_number(_RANKS, 0)


def launched_here() -> tuple[int, int]:
    """This process's number among those on its machine, and how many they are."""
    return _first_number(_LOCAL_RANKS, launched_rank()), _first_number(_LOCAL_SIZES, launched_processes())


def under_launcher() -> bool:
    """Whether a launcher started this process, be it as the only one."""
    return launched_processes() > 1 or _ACCELERATE in os.environ


def check_launched() -> None:
    """Raise UserError for variables of a launcher that name no process of a run."""
    for name in (*_SIZES, *_RANKS):
        if (value := os.environ.get(name)) and not value.isdecimal():
            raise UserError(f"{name}: '{value}' in the environment is no number")
    if not 0 <= launched_rank() < launched_processes():
        raise UserError(
            f"RANK: {launched_rank()} in the environment is no rank of {launched_processes()} processes, which are "
            "numbered from 0"
        )
    if launched_processes() == 1:
        return
    if os.environ.get("MASTER_ADDR") == "":
        raise UserError("MASTER_ADDR: it is empty in the environment, and must say where process 0 is")
    port = os.environ.get("MASTER_PORT")
    if port is not None and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(f"MASTER_PORT: '{port}' in the environment is no port, from 1 to 65535")


def meeting_key() -> str:
    """What begins the keys of all that the processes of a run tell one another before they have met."""
    # of processes that torchrun started again, the store is the same
    return f"spec_sdk/meeting/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def told_leader(status: int) -> bool:
    """Whether the leader listens for this process, which failed before they met: then nobody else tells of it, and the
    leader is told ``status``, with which it ends.

    A leader that failed too, as with a wrong option that all were given, has told of it, and never listens. Torchrun
    listens for it, but ends this process as soon as the leader has ended.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        return False
    time.sleep(_PATIENCE_S)
    until = time.monotonic() + _LONGEST_START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((address, int(port)), timeout=1):
            # who listens there may be a stranger, for whose answer torch has no timeout
            telling = threading.Thread(target=_tell, args=(address, int(port), status), daemon=True)
            telling.start()
            telling.join(_LONGEST_TELLING_S)
            return True
        time.sleep(_POLL_S)
    return False


def _tell(address: str, port: int, status: int) -> None:
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    with contextlib.suppress(RuntimeError):
        store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
        PrefixStore(meeting_key(), store).set(REFUSED, f"{launched_rank()} {status}")


@contextlib.contextmanager
def only_the_leader_speaks() -> Iterator[None]:
    """While it lasts what this process prints goes nowhere, unless it is rank 0."""
    if launched_rank() == 0:
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        yield


def _first_number(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), default)
