"""Memory that processes map together: all of them have it or none, no other file is taken for it, and none is left."""

from __future__ import annotations

import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spec_sdk_backends import mapped_memory
from spec_sdk_backends.mapped_memory import PLACE, meet
from tests.support.told import Told

SIZE, NBYTES = 3, 5000


def met(told: Told, rank: int, size: int = SIZE) -> mmap.mmap | None:
    return meet(told.say, told.hear, rank, size, NBYTES)


def files() -> set[Path]:
    return set(PLACE.glob("spec-sdk-*"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> object:
    before = files()
    yield
    assert files() <= before


def test_what_one_writes_all_read() -> None:
    told = Told()
    with ThreadPoolExecutor(SIZE) as pool:
        memories = list(pool.map(lambda rank: met(told, rank), range(SIZE)))
    for rank, memory in enumerate(memories):
        assert memory is not None and len(memory) == NBYTES
        memory[rank] = 7 + rank
    assert all(memory is not None and memory[: SIZE + 1] == b"\7\x08\t\0" for memory in memories)


def test_where_one_cannot_reach_it_none_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told, reach = Told(), mapped_memory._suits
    outsider = threading.Event()
    monkeypatch.setattr(mapped_memory, "_suits", lambda: reach() and threading.current_thread().name != "1")

    def named(rank: int) -> mmap.mmap | None:
        threading.current_thread().name = str(rank)
        outsider.set()
        return met(told, rank)

    with ThreadPoolExecutor(SIZE) as pool:
        assert list(pool.map(named, range(SIZE))) == [None] * SIZE
    assert told.texts["reached/1"] == "" and told.texts["reached/2"] == "yes"


@pytest.mark.parametrize("found", [b"\0", b"\xff"])
def test_another_file_in_its_place_is_not_taken(found: bytes, tmp_path: Path) -> None:
    """As where another machine has one of the same name."""
    (tmp_path / "file").write_bytes(found * (NBYTES + 32))
    told = Told()
    told.say("place", f"{tmp_path / 'file'} {'0' * 32}")
    told.say("reached/0", "yes")
    assert met(told, 1, 2) is None and told.texts["reached/1"] == ""


def test_without_a_place_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mapped_memory, "PLACE", tmp_path / "nowhere")
    told = Told()
    with ThreadPoolExecutor(SIZE) as pool:
        assert list(pool.map(lambda rank: met(told, rank), range(SIZE))) == [None] * SIZE
