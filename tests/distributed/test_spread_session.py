"""A leader whose calls fail: the other ranks are told of none that they would take for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.parallel.spread_session import SpreadSession, failure_of
from spec_sdk.ranks import Ranks
from tests.support.tiny_decoder import tiny_decoder


class Told(Ranks):
    """The leader of two, with what it announces."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2
        self.calls: list[str] = []

    def decide(self, choose: Callable[[], Any]) -> Any:
        self.calls.append(choose()[1])


def session_of(rank: int) -> tuple[SpreadSession, Told]:
    sessions, ranks = list[SpreadSession | None](), Told(rank)
    session = SpreadSession(TorchExecutor(tiny_decoder("smollm"), Ops()), None, ranks, sessions)
    sessions.append(session)
    return session, ranks


def no_memory(*_: object) -> torch.Tensor:
    raise RuntimeError("out of memory")


def test_behind_a_call_that_failed_on_the_leader_no_other_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may be in the middle of it, and would take an announcement for what they wait for."""
    session, ranks = session_of(0)
    session.prefill(0, [5, 3])
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="out of memory"):
        patched.setattr(TorchExecutor, "forward", no_memory)
        session.feed([0], [[7]])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            session.feed([0], [[7]])
    assert ranks.calls == ["prefill", "feed"] and str(failure_of([None, session])) == "out of memory"


def test_a_request_that_there_is_no_memory_for_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ranks = session_of(0)
    monkeypatch.setattr("spec_sdk.model.kv_cache.enlarged", no_memory)
    with pytest.raises(UserError, match="no memory for"):
        session.reserve(1, 9999)
    assert ranks.calls == ["reserve"] and failure_of([session]) is None
    follower, _ = session_of(1)
    follower.follow("reserve", [1, 9999])
