"""A leader whose calls fail: the other ranks are told of none that they would take for something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.errors import UserError
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.parallel.spread_session import SpreadSession, failure_of
from spec_sdk.ranks import Ranks
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_decoder import tiny_decoder


class Told(Ranks):
    """The leader of two, with what it announces."""

    patience_s = 0.04

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2
        self.calls: list[str] = []

    def decide(self, choose: Callable[[], Any]) -> Any:
        said = choose()
        self.calls.append(said if isinstance(said, str) else said[1])


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


@pytest.mark.parametrize("spread", [True, False])
def test_a_server_ends_by_a_call_or_a_step_that_failed(
    spread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request's own error would be told to its client alone, and the others wait in the middle of a call."""
    write_text_checkpoint(tmp_path, chat=False)
    engine = Engine.from_pipeline("vanilla", target=tmp_path)
    session, ranks = session_of(0)
    monkeypatch.setattr(type(engine.pipeline), "ranks", ranks)
    engine.pipeline.models.spread.append(session)
    told, ended, failed = list[Exception](), threading.Event(), RuntimeError("out of memory")

    def end(failure: Exception) -> None:
        told.append(failure)
        ended.set()

    with engine.waiting_followers(end):
        assert not ended.wait(0.1) and set(ranks.calls) == {"idle"}
        (session if spread else engine._serving).failure = failed
        assert ended.wait(20)
    assert told == [failed]
